// Sums and roundings of better encodings. Every sum over a row has eight partial sums, joined as a
// tree: a fixed order that vectors of four and of eight can both follow.
#ifndef PARFAIT_CONVERT_BEST_SUMS_H_
#define PARFAIT_CONVERT_BEST_SUMS_H_

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

namespace parfait::convert {

inline constexpr std::size_t lanes = 8;

template <class T>
T join(const std::array<T, lanes>& s) {
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

// Σ term(k) for k < count.
template <class T, class Term>
T sum_of(std::size_t count, const Term& term) {
  std::array<T, lanes> sums{};
  std::size_t k = 0;
  for (; k + lanes <= count; k += lanes)
    for (std::size_t j = 0; j < lanes; ++j) sums[j] += term(k + j);
  for (std::size_t j = 0; k + j < count; ++j) sums[j] += term(k + j);
  return join(sums);
}

inline float largest(std::span<const float> values) {
  std::uint32_t bits = 0;  // bits of magnitudes have the order of the magnitudes
  for (float value : values)
    bits = std::max(bits, std::bit_cast<std::uint32_t>(value) & ~(1u << 31));
  return std::bit_cast<float>(bits);
}

// rne(value), which must be below 2^22.
inline float nearest_integer(float value) {
  constexpr float to_integer = 0x1.8p23f;  // a sum with it has no bits left for fractions
  return (value + to_integer) - to_integer;
}

inline float clamped(float value, float limit) { return std::min(std::max(value, -limit), limit); }

// Rounded to the nearest value of a small float type, ties to even, saturating: as float_to_e4m3
// and back, without branches.
struct SmallFloat {
  int mantissa_bits;  // stored ones
  float least_normal, largest;
};
inline constexpr SmallFloat e4m3{3, 0x1p-6f, 448.0f}, e5m2{2, 0x1p-14f, 57344.0f};

template <SmallFloat type>
float round_to(float value) {
  constexpr int dropped = 23 - type.mantissa_bits;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & (1u << 31), magnitude = bits ^ sign;
  const std::uint32_t normal =
      (magnitude + ((1u << (dropped - 1)) - 1) + ((magnitude >> dropped) & 1u)) &
      ~((1u << dropped) - 1);
  // Subnormals are multiples of least_normal / 2^mantissa_bits, the last bit of this.
  constexpr float middle = type.least_normal * static_cast<float>(1 << dropped) * 1.5f;
  const float small = (std::bit_cast<float>(magnitude) + middle) - middle;
  float rounded =
      std::bit_cast<float>(magnitude) < type.least_normal ? small : std::bit_cast<float>(normal);
  rounded = std::min(rounded, type.largest);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(rounded) | sign);
}

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_SUMS_H_
