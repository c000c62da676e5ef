// int8_tensorwise on disk, for ever: codes I8 [N, K] row-major; scales F32, one or N of them.
#ifndef PARFAIT_FORMATS_INT8_TENSORWISE_LAYOUT_H_
#define PARFAIT_FORMATS_INT8_TENSORWISE_LAYOUT_H_

#include <cstddef>
#include <cstdint>

namespace parfait {

// Somebody else's bytes, unaligned.
struct Int8Weight {
  const std::byte* codes = nullptr;   // rows × columns, two's complement, -128 occurs
  const std::byte* scales = nullptr;  // F32
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t scale_count = 0;  // 1 or rows

  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_INT8_TENSORWISE_LAYOUT_H_
