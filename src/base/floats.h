// The small float types, each with its meaning: to and from float, with round-to-nearest-even.
// load_float and store_float, for data of a dtype that is known only at run time, are public:
// dtype.h.
//
// Widening is exact. Narrowing follows IEEE for bf16 and f16 (overflow to infinity, NaN kept
// quiet). The fp8 and fp4 encoders saturate, as comfy-kitchen's do, and keep NaN where the type has
// one. These are plain, branchy and exact: the oracle of faster code, and fast enough for headers'
// work.
#ifndef PARFAIT_BASE_FLOATS_H_
#define PARFAIT_BASE_FLOATS_H_

#include <bit>
#include <cstdint>

#include "parfait/dtype.h"

namespace parfait {

inline float bf16_to_float(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline std::uint16_t float_to_bf16(float value) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<std::uint16_t>(bits >> 16);
}

// `count` values of F32, F16 or BF16, unaligned, as floats.
void widen(DType dtype, const std::byte* from, std::uint64_t count, float* to);

float f16_to_float(std::uint16_t bits);
std::uint16_t float_to_f16(float value);

float e4m3_to_float(std::uint8_t code);  // "fn": no infinity, 0x7f and 0xff are NaN, largest 448
std::uint8_t float_to_e4m3(float value);
float e5m2_to_float(std::uint8_t code);
std::uint8_t float_to_e5m2(float value);  // saturates at 57344; infinities saturate too

// e8m0 as comfy-kitchen's eager path decodes it: 2^(code-127), with 0 for code 0 and infinity for
// 255 (OCP's text says 2^-127 and NaN).
float e8m0_to_float(std::uint8_t code);

// e2m1, in the low four bits.
float e2m1_to_float(std::uint8_t code);
std::uint8_t float_to_e2m1(float value);  // saturates at 6; the sign of zero is kept

// The value rounded to a type and back.
inline float round_to_bf16(float value) { return bf16_to_float(float_to_bf16(value)); }
inline float round_to_f16(float value) { return f16_to_float(float_to_f16(value)); }

}  // namespace parfait

#endif  // PARFAIT_BASE_FLOATS_H_
