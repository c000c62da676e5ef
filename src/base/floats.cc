#include "base/floats.h"

#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "base/bytes.h"

namespace parfait {
namespace {

// |value| as a code of a small float with the given exponent and mantissa widths and bias, rounded
// to nearest even, without regard to the type's largest value. value must be finite and not
// negative.
std::uint32_t magnitude_code(float value, int mantissa_bits, int bias) {
  if (value == 0) return 0;
  int exponent = std::ilogb(value);
  const int smallest = 1 - bias;  // exponent of the smallest normal
  if (exponent < smallest) exponent = smallest;
  // value / 2^(exponent - mantissa_bits), exact: a power of two and at most 24 significant bits.
  const double scaled = std::ldexp(static_cast<double>(value), mantissa_bits - exponent);
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(scaled));
  // A subnormal has steps < 2^mantissa_bits and its code is steps itself; a carry out of the
  // mantissa runs into the exponent field, which is what rounding up to the next binade means.
  return (static_cast<std::uint32_t>(exponent - smallest) << mantissa_bits) + steps;
}

float magnitude_value(std::uint32_t code, int mantissa_bits, int bias) {
  const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
  const int exponent = static_cast<int>(code >> mantissa_bits);
  if (exponent == 0) return std::ldexp(static_cast<float>(mantissa), 1 - bias - mantissa_bits);
  return std::ldexp(static_cast<float>(mantissa + (1u << mantissa_bits)),
                    exponent - bias - mantissa_bits);
}

float with_sign(bool negative, float magnitude) { return negative ? -magnitude : magnitude; }

}  // namespace

float f16_to_float(std::uint16_t bits) {
  const std::uint32_t sign = (bits & 0x8000u) << 16;
  const std::uint32_t magnitude = (bits & 0x7fffu) << 13;
  if ((bits & 0x7c00u) == 0x7c00u) return std::bit_cast<float>(sign | 0x7f800000u | magnitude);
  // Exponent and mantissa stand in place for a bias that is off by 112, subnormals included.
  constexpr float rebias = 0x1p112f;
  return std::bit_cast<float>(
      sign | std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * rebias));
}

void widen(DType dtype, const std::byte* from, std::uint64_t count, float* to) {
  switch (dtype) {
    case DType::bf16:
      for (std::uint64_t i = 0; i < count; ++i)
        to[i] = bf16_to_float(load_at<std::uint16_t>(from, i));
      return;
    case DType::f16:
      for (std::uint64_t i = 0; i < count; ++i)
        to[i] = f16_to_float(load_at<std::uint16_t>(from, i));
      return;
    default:
      std::memcpy(to, from, count * sizeof(float));
  }
}

std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000u);
  if (std::isnan(value))
    return static_cast<std::uint16_t>(sign | 0x7e00u | ((bits >> 13) & 0x1ffu));
  const float magnitude = std::fabs(value);
  if (magnitude >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  return static_cast<std::uint16_t>(sign | magnitude_code(magnitude, 10, 15));
}

float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  return with_sign(code & 0x80u, magnitude_value(magnitude, 3, 7));
}

std::uint8_t float_to_e4m3(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80u : 0u);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7fu);
  const float magnitude = std::fabs(value);
  if (magnitude >= 448.0f) return static_cast<std::uint8_t>(sign | 0x7eu);
  return static_cast<std::uint8_t>(sign | magnitude_code(magnitude, 3, 7));
}

float e5m2_to_float(std::uint8_t code) {
  const bool negative = code & 0x80u;
  const std::uint32_t magnitude = code & 0x7fu;
  if (magnitude == 0x7cu) return with_sign(negative, std::numeric_limits<float>::infinity());
  if (magnitude > 0x7cu) return std::numeric_limits<float>::quiet_NaN();
  return with_sign(negative, magnitude_value(magnitude, 2, 15));
}

std::uint8_t float_to_e5m2(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80u : 0u);
  if (std::isnan(value)) return static_cast<std::uint8_t>(sign | 0x7fu);
  const float magnitude = std::fabs(value);
  if (magnitude >= 57344.0f) return static_cast<std::uint8_t>(sign | 0x7bu);
  return static_cast<std::uint8_t>(sign | magnitude_code(magnitude, 2, 15));
}

float e8m0_to_float(std::uint8_t code) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(code) << 23);
}

float e2m1_to_float(std::uint8_t code) {
  constexpr float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  return with_sign(code & 8u, magnitudes[code & 7u]);
}

std::uint8_t float_to_e2m1(float value) {
  const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 8u : 0u);
  const float magnitude = std::fabs(value);
  if (!(magnitude < 6.0f)) return static_cast<std::uint8_t>(sign | 7u);
  return static_cast<std::uint8_t>(sign | magnitude_code(magnitude, 1, 1));
}

float load_float(DType dtype, const std::byte* data, std::uint64_t i) {
  switch (dtype) {
    case DType::f64:
      return static_cast<float>(load_at<double>(data, i));
    case DType::f32:
      return load_at<float>(data, i);
    case DType::f16:
      return f16_to_float(load_at<std::uint16_t>(data, i));
    case DType::bf16:
      return bf16_to_float(load_at<std::uint16_t>(data, i));
    case DType::f8_e4m3:
      return e4m3_to_float(load_at<std::uint8_t>(data, i));
    case DType::f8_e5m2:
      return e5m2_to_float(load_at<std::uint8_t>(data, i));
    case DType::f8_e8m0:
      return e8m0_to_float(load_at<std::uint8_t>(data, i));
    default:
      return std::numeric_limits<float>::quiet_NaN();
  }
}

void store_float(DType dtype, std::byte* data, std::uint64_t i, float value) {
  switch (dtype) {
    case DType::f32:
      return store_at(data, i, value);
    case DType::f16:
      return store_at(data, i, float_to_f16(value));
    case DType::bf16:
      return store_at(data, i, float_to_bf16(value));
    default:
      return;
  }
}

}  // namespace parfait
