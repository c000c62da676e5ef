// The integer product on Arm with 8-bit dot products: sdot multiplies four pairs of signed bytes in
// each of four lanes and adds them to int32. The register tile is 8 rows of x by one panel of 8
// rows: 16 sums.

#include "kernels/linear/panel.h"
#include "kernels/linear/variants.h"

#if defined(__aarch64__)

#include <cstring>

#include "kernels/linear/neon.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/neon_dotprod_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using neon::Int4Weights;
using neon::Int8Weights;
using neon::lanes;
using neon::Outputs;
using neon::Product;
using neon::widen_w4a8;
using neon::widen_w6a8;

constexpr int tile_rows = 8, most_sums = 16;

using Sums = int32x4_t;
using Codes = int8x16_t;

inline Sums zero_sums() { return vdupq_n_s32(0); }
inline Sums join(Sums a, Sums b) { return vaddq_s32(a, b); }

inline Codes broadcast(const std::byte* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}

template <class Weights>
inline void add_product(Sums& sums, const Weights& w, Codes c) {
  sums = vdotq_s32(sums, w.codes, c);
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

const LinearKernel int8_neon_dotprod =
    linear_kernel<WeightCode::int8>("int8.neon_dotprod", Isa::neon_dotprod);
const LinearKernel int4_neon_dotprod =
    linear_kernel<WeightCode::int4>("int4.neon_dotprod", Isa::neon_dotprod);
const LinearKernel w4a8_neon_dotprod =
    linear_kernel<WeightCode::w4a8>("w4a8.neon_dotprod", Isa::neon_dotprod);
const LinearKernel w6a8_neon_dotprod =
    linear_kernel<WeightCode::w6a8>("w6a8.neon_dotprod", Isa::neon_dotprod);

}  // namespace parfait::kernels

#include "kernels/neon_dotprod_end.inc"

#endif  // __aarch64__
