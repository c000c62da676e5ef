// The integer product on AVX-VNNI: as avx512_vnni_multiply.cc, in vectors of 256 bits. The register
// tile is 6 rows of x by one panel: 12 sums, 2 weights, 1 activation.

#include "kernels/linear/panel.h"
#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/linear/avx2.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx2::lanes;
using avx2::Outputs;
using avx2::Product;
using avx2::widen_w4a8;
using avx2::widen_w6a8;

constexpr int tile_rows = 6, most_sums = 12;

using Sums = __m256i;
using Codes = __m256i;

inline Sums zero_sums() { return _mm256_setzero_si256(); }
inline Sums join(Sums a, Sums b) { return _mm256_add_epi32(a, b); }

inline Codes broadcast(const std::byte* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return _mm256_set1_epi32(four);
}

struct Int8Weights {
  static constexpr std::uint32_t offset = 128;
  __m256i codes;
  static Int8Weights load(const std::byte* at) { return {avx2::load32(at)}; }
};

struct Int4Weights {
  static constexpr std::uint32_t offset = 8;
  __m256i codes;
  static Int4Weights load(const std::byte* at, int step) {
    const __m256i both = avx2::load32(at);
    return {_mm256_and_si256(step ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15))};
  }
};

// In assembly, because GCC 12 copies the sums of the intrinsic to and fro; VEX-coded, because the
// machine may have no AVX-512.
template <class Weights>
inline void add_product(Sums& sums, const Weights& w, Codes c) {
  __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sums) : "x"(w.codes), "x"(c));
}

using P = Panel<lanes>;
constexpr std::uint8_t int8_flip = 0x80;
// In this order.
#include "kernels/linear/panel_steps.inc"
// then
#include "kernels/linear/panel_codes.inc"
// then
#include "kernels/linear/panel_pack.inc"
// then
#include "kernels/linear/panel_views.inc"
// then
#include "kernels/linear/panel_tile.inc"
// then
#include "kernels/linear/panel_multiply.inc"

}  // namespace

const LinearKernel int8_avx_vnni = linear_kernel<WeightCode::int8>("int8.avx_vnni", Isa::avx_vnni);
const LinearKernel int4_avx_vnni = linear_kernel<WeightCode::int4>("int4.avx_vnni", Isa::avx_vnni);
const LinearKernel w4a8_avx_vnni = linear_kernel<WeightCode::w4a8>("w4a8.avx_vnni", Isa::avx_vnni);
const LinearKernel w6a8_avx_vnni = linear_kernel<WeightCode::w6a8>("w6a8.avx_vnni", Isa::avx_vnni);

}  // namespace parfait::kernels

#include "kernels/avx_vnni_end.inc"

#endif  // __x86_64__
