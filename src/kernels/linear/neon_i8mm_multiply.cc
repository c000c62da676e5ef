// The integer product on Arm with 8-bit matrix products: smmla multiplies 2 × 8 by 8 × 2 signed
// bytes and adds them to 2 × 2 int32. The panels are those of the dot products: two steps, zipped,
// hold two rows' eight columns in a vector. The register tile is 4 pairs of rows of x by one panel
// of 4 pairs: 16 sums.

#include "kernels/linear/panel.h"
#include "kernels/linear/variants.h"

#if defined(__aarch64__)

#include <cstring>

#include "kernels/linear/neon.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/neon_i8mm_begin.inc"
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

constexpr int tile_rows = 8;

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

// Four sums of a vector are x0·w0, x0·w1, x1·w0, x1·w1.
template <class Steps, int rows>
void tile(const Product& p, const std::byte* panel, Ahead ahead, std::uint64_t m, std::uint64_t n,
          std::uint64_t n1) {
  constexpr int pairs = (rows + 1) / 2, weight_pairs = 4;
  const std::uint64_t blocks = P::blocks(p.w.columns), stride = p.x.stride;
  // Where rows are odd in number, the last is its own partner.
  const std::int8_t* codes[2 * pairs];
  for (int i = 0; i < 2 * pairs; ++i)
    codes[i] = reinterpret_cast<const std::int8_t*>(p.x.codes.data()) +
               (m + static_cast<std::uint64_t>(i < rows ? i : rows - 1)) * stride;
  int32x4_t sums[pairs][weight_pairs];
#pragma GCC unroll 4
  for (int i = 0; i < pairs; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < weight_pairs; ++j) sums[i][j] = vdupq_n_s32(0);

  for (std::uint64_t b = 0; b < blocks; ++b) {
    for (std::uint64_t at = 0; at < ahead.bytes; at += 64) __builtin_prefetch(ahead.at + at, 0, 3);
    ahead.at += ahead.bytes;
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      int8x16_t w[weight_pairs];
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        const int32x4_t first = vreinterpretq_s32_s8(Steps::load(panel, 2 * half, v).codes),
                        second = vreinterpretq_s32_s8(Steps::load(panel, 2 * half + 1, v).codes);
        w[2 * v] = vreinterpretq_s8_s32(vzip1q_s32(first, second));
        w[2 * v + 1] = vreinterpretq_s8_s32(vzip2q_s32(first, second));
      }
#pragma GCC unroll 4
      for (int i = 0; i < pairs; ++i) {
        const std::uint64_t k = b * P::block + static_cast<std::uint64_t>(half) * 8;
        const int8x16_t c = vcombine_s8(vld1_s8(codes[2 * i] + k), vld1_s8(codes[2 * i + 1] + k));
#pragma GCC unroll 4
        for (int j = 0; j < weight_pairs; ++j) sums[i][j] = vmmlaq_s32(sums[i][j], c, w[j]);
      }
    }
    panel += Steps::block_bytes;
  }

#pragma GCC unroll 2
  for (int v = 0; v < vectors; ++v) {
    const std::uint64_t at = n + static_cast<std::uint64_t>(v) * lanes;
    if (at >= n1) break;
    const Outputs outputs(p, at, n1 - at);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const int32x4_t a = sums[i / 2][2 * v], b = sums[i / 2][2 * v + 1];
      const int32x4_t sum = i % 2 == 0 ? vcombine_s32(vget_low_s32(a), vget_low_s32(b))
                                       : vcombine_s32(vget_high_s32(a), vget_high_s32(b));
      outputs.finish(p, m + static_cast<std::uint64_t>(i), Steps::offset, sum);
    }
  }
}

#include "kernels/linear/panel_multiply.inc"

}  // namespace

const LinearKernel int8_neon_i8mm =
    linear_kernel<WeightCode::int8>("int8.neon_i8mm", Isa::neon_i8mm);
const LinearKernel int4_neon_i8mm =
    linear_kernel<WeightCode::int4>("int4.neon_i8mm", Isa::neon_i8mm);
const LinearKernel w4a8_neon_i8mm =
    linear_kernel<WeightCode::w4a8>("w4a8.neon_i8mm", Isa::neon_i8mm);
const LinearKernel w6a8_neon_i8mm =
    linear_kernel<WeightCode::w6a8>("w6a8.neon_i8mm", Isa::neon_i8mm);

}  // namespace parfait::kernels

#include "kernels/neon_i8mm_end.inc"

#endif  // __aarch64__
