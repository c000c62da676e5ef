// The element types of safetensors, in the order of its reference implementation. A type keeps its
// meaning from disk to kernel: F8_E4M3 is never "a byte with a flag".
#ifndef PARFAIT_DTYPE_H_
#define PARFAIT_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace parfait {

enum class DType : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};
inline constexpr int dtype_count = 22;

std::string_view dtype_name(DType dtype);  // "F8_E4M3"
std::uint32_t dtype_bits(DType dtype);     // 4, 6, 8, 16, 32 or 64 bits an element
// The dtype of a header's spelling; also takes F8_E4M3FN, which some writers use for F8_E4M3.
std::optional<DType> parse_dtype(std::string_view name);

// The i-th element of packed data of a float dtype (F64, F32, F16, BF16, F8_E4M3, F8_E5M2,
// F8_E8M0), as float. Other dtypes give NaN: callers check dtypes first.
float load_float(DType dtype, const std::byte* data, std::uint64_t i);
// Stores as F32, F16 or BF16, rounded to nearest even.
void store_float(DType dtype, std::byte* data, std::uint64_t i, float value);

}  // namespace parfait

#endif  // PARFAIT_DTYPE_H_
