#include "convert/error_sums.h"

#include <cmath>
#include <cstring>

namespace parfait::convert {
namespace {

constexpr std::size_t lanes = 16;
// Compilers shuffle an array of lanes between registers at each step, at five times the cost of the
// sums. Four of these they keep where they are; each lane's operations stay the same.
using Quarter = float __attribute__((vector_size(16)));
// Values that partial sums in float are kept for.
constexpr std::size_t run = 4096;

double squares(const float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t begin = 0; begin < count; begin += run) {
    const std::size_t end = std::min(begin + run, count);
    Quarter sums[4] = {};
    std::size_t i = begin;
    for (; i + lanes <= end; i += lanes)
      for (std::size_t q = 0; q < 4; ++q) {
        Quarter x;
        std::memcpy(&x, values + i + 4 * q, sizeof(x));
        sums[q] += x * x;
      }
    float partial[lanes];
    std::memcpy(partial, sums, sizeof(partial));
    for (std::size_t l = 0; i < end; ++i, ++l) partial[l] += values[i] * values[i];
    double all = 0;
    for (const float one : partial) all += one;
    sum += all;
  }
  return sum;
}

}  // namespace

void add_squares(std::span<const float> differences, std::span<const float> values,
                 ErrorSums& sums) {
  sums.error += squares(differences.data(), differences.size());
  sums.energy += squares(values.data(), values.size());
}

float largest_magnitude(std::span<const float> values) {
  float partial[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes)
    for (std::size_t l = 0; l < lanes; ++l) {
      const float magnitude = std::fabs(values[i + l]);
      partial[l] = magnitude > partial[l] ? magnitude : partial[l];
    }
  float most = 0;
  for (; i < values.size(); ++i) most = std::max(most, std::fabs(values[i]));
  for (const float one : partial) most = std::max(most, one);
  return most;
}

}  // namespace parfait::convert
