// The sums of which errors of weights are made: of b against a, value by value.
//
// Floats are summed in short blocks in a fixed order, blocks in double: the same numbers on any
// machine, as long as pieces begin at the same values.
#ifndef PARFAIT_CONVERT_VALUE_ERRORS_H_
#define PARFAIT_CONVERT_VALUE_ERRORS_H_

#include <cstdint>
#include <span>

namespace parfait::convert {

struct ValueErrors {
  double signal = 0, noise = 0;  // Σ a², Σ (a - b)²
  double largest = 0;            // |a - b|
  std::uint64_t not_finite = 0;  // where one is NaN or infinite, and they are not the same

  void add(std::span<const float> a, std::span<const float> b);
  void add_value(double a, double b);
  void add(const ValueErrors& other);
  double relative() const;  // √(noise / signal); 0 where nothing differs
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_VALUE_ERRORS_H_
