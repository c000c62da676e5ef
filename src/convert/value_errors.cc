#include "convert/value_errors.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace parfait::convert {

void ValueErrors::add_value(double a, double b) {
  if (!std::isfinite(a) || !std::isfinite(b)) {
    const bool same = std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
    not_finite += !same;
    return;
  }
  signal += a * a;
  noise += (a - b) * (a - b);
  largest = std::max(largest, std::fabs(a - b));
}

void ValueErrors::add(std::span<const float> a, std::span<const float> b) {
  constexpr std::size_t lanes = 8, block = 32 * lanes;
  std::size_t i = 0;
  for (; i + block <= a.size(); i += block) {
    float s[lanes] = {}, n[lanes] = {}, most[lanes] = {};
    for (std::size_t j = i; j < i + block; j += lanes) {
      for (std::size_t l = 0; l < lanes; ++l) {
        const float x = a[j + l], d = x - b[j + l], size = std::fabs(d);
        s[l] += x * x;
        n[l] += d * d;
        most[l] = size > most[l] ? size : most[l];
      }
    }
    double block_signal = 0, block_noise = 0;
    for (std::size_t l = 0; l < lanes; ++l) {
      block_signal += static_cast<double>(s[l]);
      block_noise += static_cast<double>(n[l]);
    }
    // Squares that leave a float's range, or come near its end, are summed one by one.
    constexpr double least = 1e-25, greatest = 1e30;
    if ((block_noise == 0 || block_noise > least) && block_noise < greatest &&
        block_signal > least && block_signal < greatest) {
      signal += block_signal;
      noise += block_noise;
      for (const float m : most) largest = std::max(largest, static_cast<double>(m));
    } else {
      for (std::size_t j = i; j < i + block; ++j)
        add_value(static_cast<double>(a[j]), static_cast<double>(b[j]));
    }
  }
  for (; i < a.size(); ++i) add_value(static_cast<double>(a[i]), static_cast<double>(b[i]));
}

void ValueErrors::add(const ValueErrors& other) {
  signal += other.signal;
  noise += other.noise;
  largest = std::max(largest, other.largest);
  not_finite += other.not_finite;
}

double ValueErrors::relative() const {
  if (noise == 0) return 0;
  return signal > 0 ? std::sqrt(noise / signal) : std::numeric_limits<double>::infinity();
}

}  // namespace parfait::convert
