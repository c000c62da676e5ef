// Weights of 4 and 6 bits that stand for int8 values (asym_w4a8_int8, w6a8_int8). With v the level
// of a code and s the relative scale of its row and group of columns, an e4m3 value:
//
//   w = clamp(rne(v · s), -127, 127)        one float multiplication
//
// There are 256 scale codes and 16 or 64 weight codes, so w is looked up: T[scale code][code].
// Where s is NaN (0x7f, 0xff), T holds 0 and the row's scale is to be NaN.
// Source: comfy-kitchen backends/eager/w4a8_int8.py.
#ifndef PARFAIT_KERNELS_LINEAR_WIDEN_H_
#define PARFAIT_KERNELS_LINEAR_WIDEN_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/linear/linear.h"

namespace parfait::kernels {

inline constexpr std::uint64_t scale_codes = 256;
inline constexpr std::uint64_t w4a8_levels = 16, w6a8_levels = 64;
// Groups of columns that kernels take are multiples of this.
inline constexpr std::uint64_t least_scale_group = 16;

constexpr std::uint64_t level_count(WeightCode code) {
  return code == WeightCode::w4a8 ? w4a8_levels : code == WeightCode::w6a8 ? w6a8_levels : 0;
}

constexpr std::uint64_t table_bytes(WeightCode code) { return scale_codes * level_count(code); }

// The int8 value of a level v under a scale s; 0 where one of them is NaN.
std::int8_t widened(float level, float scale);

// T: scale_codes × levels.size() bytes, each with flip's bits flipped.
AlignedBytes widening_tables(std::span<const float> levels, std::uint8_t flip);

// Code of one column: W4A8's even column is in the low nibble; W6A8 has a plane of low nibbles and
// one of high pairs of bits.
unsigned weight_code(WeightCode code, const std::byte* row, std::uint64_t columns,
                     std::uint64_t column);
std::uint64_t row_bytes(WeightCode code, std::uint64_t columns);

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_LINEAR_WIDEN_H_
