// convrot_w4a4 on disk, for ever: codes I8 [N, K/2], two signed nibbles a byte, the even column in
// the low one; scales F32 [N].
#ifndef PARFAIT_FORMATS_CONVROT_W4A4_LAYOUT_H_
#define PARFAIT_FORMATS_CONVROT_W4A4_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace parfait {

// Somebody else's bytes, unaligned.
struct Int4Weight {
  const std::byte* codes = nullptr;   // rows × columns / 2
  const std::byte* scales = nullptr;  // F32, one a row
  std::uint64_t rows = 0, columns = 0;

  static constexpr std::uint64_t pack_columns = 64;  // K is a multiple of this
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns / 2; }
};

// The signed value of the nibble of one column: -8 .. 7, writers emit -7 .. 7.
inline int int4_code(const std::byte* row, std::uint64_t column) {
  const int byte = std::to_integer<int>(row[column / 2]);
  const int nibble = column % 2 == 0 ? byte & 15 : byte >> 4;
  return (nibble ^ 8) - 8;
}

}  // namespace parfait

#endif  // PARFAIT_FORMATS_CONVROT_W4A4_LAYOUT_H_
