// w6a8_int8 on disk, for ever: codes I8 [N, 3K/4] in two planes a row. The first K/2 bytes are the
// low four bits, the even column in the low nibble; the next K/4 the high two, column c in byte c/4
// at bit 2·(c mod 4). Relative scales F8_E4M3 (or U8 with its bytes, or F32) [N, K/G]; channel
// scales F32 [N].
#ifndef PARFAIT_FORMATS_W6A8_INT8_LAYOUT_H_
#define PARFAIT_FORMATS_W6A8_INT8_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

// Somebody else's bytes, unaligned.
struct W6A8Weight {
  const std::byte* codes = nullptr;            // rows × columns · 3/4
  const std::byte* relative_scales = nullptr;  // rows × (columns / group)
  const std::byte* channel_scales = nullptr;   // F32, one a row
  DType relative_dtype = DType::f8_e4m3;
  std::uint64_t rows = 0, columns = 0, group = 0;

  static constexpr int middle_code = 32;             // code c stands for c - 32; 0 is not written
  static constexpr std::uint64_t pack_columns = 32;  // K is a multiple of this
  static constexpr std::uint64_t least_group = 16;   // G is a multiple of this
  static constexpr std::uint64_t high_plane(std::uint64_t columns) { return columns / 2; }
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns / 4 * 3; }
};

// The codes of four columns from `column` on, which is a multiple of 4.
struct FourCodes {
  unsigned codes[4];
};
inline FourCodes w6a8_codes(const std::byte* row, std::uint64_t columns, std::uint64_t column) {
  const unsigned a = std::to_integer<unsigned>(row[column / 2]);
  const unsigned b = std::to_integer<unsigned>(row[column / 2 + 1]);
  const unsigned high =
      std::to_integer<unsigned>(row[W6A8Weight::high_plane(columns) + column / 4]);
  return {{(a & 15) | (high & 3) << 4, a >> 4 | (high >> 2 & 3) << 4,
           (b & 15) | (high >> 4 & 3) << 4, b >> 4 | (high >> 6) << 4}};
}

}  // namespace parfait

#endif  // PARFAIT_FORMATS_W6A8_INT8_LAYOUT_H_
