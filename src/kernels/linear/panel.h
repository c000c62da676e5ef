// The packed form that the vector variants share, by `lanes`, the int32 values of their vector.
//
// A panel holds 2·lanes rows of the weight. Its unit is a step: 4 columns of every row, 4 bytes a
// row, two vectors; one instruction multiplies a vector by the same 4 codes of an activation.
//
//   int8   steps, columns rounded up to a block of 16
//   int4   two steps share their bytes, the first in the low nibbles; codes plus 8
//   w4a8   for each block of 16 columns, lanes chunks of 16 bytes: chunk q holds row 4L + t in its
//          low nibbles and row lanes + 4L + t in its high ones, a byte a column, with
//          t = q / (lanes/4), L = q mod (lanes/4): looked up and transposed in 128-bit pieces,
//          four of these rows make the vectors of four steps. Behind all blocks, the relative
//          scales: for each group, row lanes·v + 4L + t at (v·4 + t)·lanes/4 + L
//   w6a8   as w4a8 with the low four bits; behind a block's chunks lanes/2 more with the high bits:
//          chunk v·lanes/4 + L holds rows lanes·v + 4L + i at bits 2i
//
// Rows past the last are zeros. panel_pack.inc packs, panel_multiply.inc multiplies. A panel of
// w4a8 or w6a8 is widened into an int8 panel in scratch when it is multiplied.
#ifndef PARFAIT_KERNELS_LINEAR_PANEL_H_
#define PARFAIT_KERNELS_LINEAR_PANEL_H_

#include <cstddef>
#include <cstdint>

#include "kernels/linear/linear.h"

namespace parfait::kernels {

template <unsigned lanes>
struct Panel {
  static constexpr std::uint64_t rows = 2 * lanes;
  static constexpr std::uint64_t block = 16;       // columns
  static constexpr std::uint64_t step = rows * 4;  // bytes of 4 columns
  static constexpr std::uint64_t int8_block = 4 * step;
  static constexpr std::uint64_t int4_block = 2 * step;
  static constexpr std::uint64_t w4a8_block = lanes * 16;
  static constexpr std::uint64_t w6a8_block = lanes * 24;

  static constexpr std::uint64_t blocks(std::uint64_t columns) {
    return (columns + block - 1) / block;
  }
  // Bytes of one panel.
  static constexpr std::uint64_t bytes(WeightCode code, std::uint64_t columns,
                                       std::uint64_t scale_group) {
    switch (code) {
      case WeightCode::int8:
        return blocks(columns) * int8_block;
      case WeightCode::int4:
        return blocks(columns) * int4_block;
      default: {
        const std::uint64_t block_bytes = code == WeightCode::w4a8 ? w4a8_block : w6a8_block;
        return (blocks(columns) * block_bytes + columns / scale_group * rows + 63) / 64 * 64;
      }
    }
  }
};

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_LINEAR_PANEL_H_
