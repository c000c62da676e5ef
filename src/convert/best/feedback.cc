#include "convert/best/feedback.h"

#include <algorithm>
#include <vector>

#include "convert/best/product.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t block = 128;  // columns whose errors reach the rest all at once

// Columns [first, end) of one row, in U's order: codes, and each error over U's diagonal.
double round_block(const Grid& grid, const Inputs& inputs, std::uint64_t first, std::uint64_t end,
                   float* w, float* errors, RowFit& fit) {
  double total = 0;
  for (std::uint64_t i = first; i < end; ++i) {
    const float* u = inputs.factor.data() + i * inputs.columns;
    const float error = (w[i] - grid.nearest(w[i], inputs.order[i], fit)) / u[i];
    errors[i - first] = error;
    total += static_cast<double>(error) * static_cast<double>(error);
    for (std::uint64_t j = i + 1; j < end; ++j) w[j] -= error * u[j];
  }
  return total;
}

}  // namespace

void round_with_feedback(const Grid& grid, const Inputs& inputs, const float* w,
                         std::span<RowFit> fits, std::span<double> errors) {
  const std::uint64_t columns = inputs.columns, rows = fits.size();
  std::vector<float> ordered(rows * columns), lost(rows * block);
  for (std::uint64_t r = 0; r < rows; ++r)
    for (std::uint64_t k = 0; k < columns; ++k)
      ordered[r * columns + k] = w[r * columns + inputs.order[k]];
  std::fill(errors.begin(), errors.end(), 0.0);
  for (std::uint64_t first = 0; first < columns; first += block) {
    const std::uint64_t end = std::min(columns, first + block);
    for (std::uint64_t r = 0; r < rows; ++r)
      errors[r] += round_block(grid, inputs, first, end, ordered.data() + r * columns,
                               lost.data() + r * block, fits[r]);
    subtract_product(ordered.data() + end, columns, rows, columns - end, end - first,
                     {lost.data(), block, 1}, inputs.factor.data() + first * columns + end,
                     columns);
  }
}

}  // namespace parfait::convert
