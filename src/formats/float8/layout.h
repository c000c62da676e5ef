// float8_e4m3fn and float8_e5m2 on disk, for ever: codes F8_E4M3 or F8_E5M2 [N, K] row-major; one
// F32 scale for the tensor, or none, which means 1.
#ifndef PARFAIT_FORMATS_FLOAT8_LAYOUT_H_
#define PARFAIT_FORMATS_FLOAT8_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

// Somebody else's bytes, unaligned.
struct Float8Weight {
  const std::byte* codes = nullptr;  // rows × columns
  const std::byte* scale = nullptr;  // one F32, or null
  DType dtype = DType::f8_e4m3;      // or f8_e5m2
  std::uint64_t rows = 0, columns = 0;

  static constexpr std::uint64_t row_bytes(std::uint64_t columns) { return columns; }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_FLOAT8_LAYOUT_H_
