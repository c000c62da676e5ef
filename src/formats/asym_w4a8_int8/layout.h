// asym_w4a8_int8 on disk, for ever: codes I8 [N, K/2], two unsigned nibbles a byte, the even column
// in the low one; relative scales F8_E4M3 (or U8 with its bytes, or F32) [N, K/G]; channel scales
// F32 [N]; where there is one, a codebook F32 [16]; where there is one, a correction [K/G, N].
#ifndef PARFAIT_FORMATS_ASYM_W4A8_INT8_LAYOUT_H_
#define PARFAIT_FORMATS_ASYM_W4A8_INT8_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

// Somebody else's bytes, unaligned.
struct AsymW4A8Weight {
  const std::byte* codes = nullptr;            // rows × columns / 2
  const std::byte* relative_scales = nullptr;  // rows × (columns / group)
  const std::byte* channel_scales = nullptr;   // F32, one a row
  const std::byte* codebook = nullptr;         // F32, 16; null: code c stands for c - 8
  DType relative_dtype = DType::f8_e4m3;
  std::uint64_t rows = 0, columns = 0, group = 0;

  static constexpr std::uint64_t codebook_size = 16;
  static constexpr int middle_code = 8;
  static constexpr std::uint64_t default_group = 16;
  static constexpr std::uint64_t pack_columns = 16;  // K is a multiple of this
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns / 2; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_ASYM_W4A8_INT8_LAYOUT_H_
