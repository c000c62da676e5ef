#include "models/embeddings.h"

#include <cmath>
#include <numeric>

namespace parfait::models {

Buffer time_embedding(float t, std::uint64_t width) {
  const std::uint64_t half = width / 2;
  Buffer out(1, width, DType::f32);
  const float log_period = -static_cast<float>(std::log(10000.0));
  for (std::uint64_t i = 0; i < half; ++i) {
    const float exponent = log_period * static_cast<float>(i) / static_cast<float>(half);
    const float angle = t * std::exp(exponent);
    out.floats()[i] = std::cos(angle);
    out.floats()[half + i] = std::sin(angle);
  }
  return out;
}

RopeTable rope_table(std::span<const Position> positions, std::span<const std::uint64_t> axes,
                     double theta, AngleRounding rounding) {
  const std::uint64_t columns = std::accumulate(axes.begin(), axes.end(), std::uint64_t{0}) / 2;
  RopeTable table{Buffer(positions.size(), columns, DType::f32),
                  Buffer(positions.size(), columns, DType::f32)};
  std::vector<std::pair<std::size_t, double>> frequencies;  // axis, frequency
  for (std::size_t axis = 0; axis < axes.size(); ++axis)
    for (std::uint64_t i = 0; i < axes[axis] / 2; ++i) {
      const double exponent = 2.0 * static_cast<double>(i) / static_cast<double>(axes[axis]);
      const double frequency =
          rounding == AngleRounding::all_float
              ? static_cast<double>(
                    1.0f / std::pow(static_cast<float>(theta), static_cast<float>(exponent)))
              : 1.0 / std::pow(theta, exponent);
      frequencies.emplace_back(axis, frequency);
    }
  for (std::size_t row = 0; row < positions.size(); ++row)
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      const double angle = positions[row][frequencies[i].first] * frequencies[i].second;
      const std::uint64_t at = row * columns + i;
      if (rounding == AngleRounding::none) {
        table.cos.floats()[at] = static_cast<float>(std::cos(angle));
        table.sin.floats()[at] = static_cast<float>(std::sin(angle));
      } else {
        table.cos.floats()[at] = std::cos(static_cast<float>(angle));
        table.sin.floats()[at] = std::sin(static_cast<float>(angle));
      }
    }
  return table;
}

}  // namespace parfait::models
