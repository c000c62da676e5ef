// mxfp8 on disk, for ever: codes F8_E4M3 [N', K'] row-major; block scales, one E8M0 byte for 32
// columns, padded to 128×4 tiles and swizzled. N' and K' may be N and K rounded up to 32.
#ifndef PARFAIT_FORMATS_MXFP8_LAYOUT_H_
#define PARFAIT_FORMATS_MXFP8_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace parfait {

// Somebody else's bytes.
struct Mxfp8Weight {
  const std::byte* codes = nullptr;         // rows × columns
  const std::byte* block_scales = nullptr;  // swizzled
  std::uint64_t rows = 0, columns = 0;

  static constexpr std::uint64_t block = 32;          // columns that share a block scale
  static constexpr std::uint64_t tile_columns = 128;  // columns of a tile of block scales
  static constexpr std::uint64_t row_padding = 32;
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_MXFP8_LAYOUT_H_
