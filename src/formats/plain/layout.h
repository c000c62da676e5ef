// A plain weight on disk: F32, F16 or BF16 [N, K], row-major, little-endian.
#ifndef PARFAIT_FORMATS_PLAIN_LAYOUT_H_
#define PARFAIT_FORMATS_PLAIN_LAYOUT_H_

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

// Somebody else's bytes, unaligned.
struct PlainWeight {
  const std::byte* values = nullptr;  // rows × columns of dtype
  DType dtype = DType::f32;
  std::uint64_t rows = 0, columns = 0;

  std::uint64_t row_bytes() const { return columns * (dtype_bits(dtype) / 8); }
};

}  // namespace parfait

#endif  // PARFAIT_FORMATS_PLAIN_LAYOUT_H_
