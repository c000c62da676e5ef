// Arithmetic on numbers that came from a file: no result rather than a wrong one.
#ifndef PARFAIT_BASE_CHECKED_H_
#define PARFAIT_BASE_CHECKED_H_

#include <cstdint>
#include <optional>
#include <span>

namespace parfait {

inline std::optional<std::uint64_t> checked_mul(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_mul_overflow(a, b, &r)) return std::nullopt;
  return r;
}

inline std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  std::uint64_t r;
  if (__builtin_add_overflow(a, b, &r)) return std::nullopt;
  return r;
}

// The product of a shape's dimensions; 1 for a shape of none. A zero anywhere makes it zero, even
// beside dimensions whose product would not fit.
inline std::optional<std::uint64_t> checked_product(std::span<const std::uint64_t> shape) {
  for (std::uint64_t d : shape)
    if (d == 0) return 0;
  std::uint64_t product = 1;
  for (std::uint64_t d : shape)
    if (__builtin_mul_overflow(product, d, &product)) return std::nullopt;
  return product;
}

inline constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0);
}
inline constexpr std::uint64_t round_up(std::uint64_t a, std::uint64_t b) {
  return ceil_div(a, b) * b;
}

}  // namespace parfait

#endif  // PARFAIT_BASE_CHECKED_H_
