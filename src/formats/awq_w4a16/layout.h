// awq_w4a16 on disk, for ever: codes I8 [N, K/2], two unsigned nibbles a byte, the even column in
// the low one; scales and zeros [K/G, N], BF16 or F16: a group of G columns is a row of them.
#ifndef PARFAIT_FORMATS_AWQ_W4A16_LAYOUT_H_
#define PARFAIT_FORMATS_AWQ_W4A16_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

// Somebody else's bytes, unaligned.
struct AwqWeight {
  const std::byte* codes = nullptr;   // rows × columns / 2
  const std::byte* scales = nullptr;  // (columns / group) × rows
  const std::byte* zeros = nullptr;   // the same, what a code of 8 stands for
  DType scale_dtype = DType::bf16;
  std::uint64_t rows = 0, columns = 0, group = 0;

  static constexpr int middle_code = 8;
  static constexpr std::uint64_t default_group = 64;
  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns / 2; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_AWQ_W4A16_LAYOUT_H_
