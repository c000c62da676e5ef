// The integer product on AVX2, which has no instruction that multiplies four bytes at a time.
//
// vpmaddubsw multiplies unsigned by signed bytes and adds neighbours in int16, with saturation. For
// int8 weights the operands are |w| and c with the sign of w: 2 · 128 · 127 = 32,512 fits. For int4
// weights they are the code plus 8 and c. vpmaddwd with ones makes int32 of it. Exact, since c is
// never -128.

#include "kernels/linear/panel.h"
#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/linear/avx2.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx2::lanes;
using avx2::Outputs;
using avx2::Product;
using avx2::widen_w4a8;
using avx2::widen_w6a8;

constexpr int tile_rows = 4, most_sums = 8;

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
  static constexpr std::uint32_t offset = 0;
  __m256i codes, magnitudes;
  static Int8Weights load(const std::byte* at) {
    const __m256i codes = avx2::load32(at);
    return {codes, _mm256_abs_epi8(codes)};
  }
};

struct Int4Weights {
  static constexpr std::uint32_t offset = 8;
  __m256i codes;
  static Int4Weights load(const std::byte* at, int step) {
    const __m256i both = avx2::load32(at);
    return {_mm256_and_si256(step ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15))};
  }
};

inline void add_pairs(Sums& sums, __m256i pairs) {
  sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
inline void add_product(Sums& sums, const Int8Weights& w, Codes c) {
  add_pairs(sums, _mm256_maddubs_epi16(w.magnitudes, _mm256_sign_epi8(c, w.codes)));
}
inline void add_product(Sums& sums, const Int4Weights& w, Codes c) {
  add_pairs(sums, _mm256_maddubs_epi16(w.codes, c));
}

using P = Panel<lanes>;
constexpr std::uint8_t int8_flip = 0;
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

const LinearKernel int8_avx2 = linear_kernel<WeightCode::int8>("int8.avx2", Isa::avx2);
const LinearKernel int4_avx2 = linear_kernel<WeightCode::int4>("int4.avx2", Isa::avx2);
const LinearKernel w4a8_avx2 = linear_kernel<WeightCode::w4a8>("w4a8.avx2", Isa::avx2);
const LinearKernel w6a8_avx2 = linear_kernel<WeightCode::w6a8>("w6a8.avx2", Isa::avx2);

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
