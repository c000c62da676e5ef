// nvfp4 on disk, for ever: codes U8 [N', K'/2], two e2m1 nibbles a byte, the even column in the
// high one; block scales F8_E4M3 for 16 columns each, padded to 128×4 tiles and swizzled; one F32
// scale for the tensor. N' and K' may be N and K rounded up to 16.
#ifndef PARFAIT_FORMATS_NVFP4_LAYOUT_H_
#define PARFAIT_FORMATS_NVFP4_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace parfait {

// Somebody else's bytes, unaligned.
struct Nvfp4Weight {
  const std::byte* codes = nullptr;         // rows × columns / 2
  const std::byte* block_scales = nullptr;  // swizzled
  const std::byte* scale = nullptr;         // one F32
  std::uint64_t rows = 0, columns = 0;

  static constexpr std::uint64_t block = 16;         // columns that share a block scale
  static constexpr std::uint64_t tile_columns = 64;  // columns of a tile of block scales
  static constexpr std::uint64_t row_padding = 16;
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns / 2; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_NVFP4_LAYOUT_H_
