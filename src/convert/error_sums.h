// Sums of squared differences over blocks of rows. A block's size depends on the width alone, and
// its sums on nothing but its values, so totals are the same whatever the panels and threads.
#ifndef PARFAIT_CONVERT_ERROR_SUMS_H_
#define PARFAIT_CONVERT_ERROR_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace parfait::convert {

struct ErrorSums {
  double error = 0;   // Σ (written - source)²
  double energy = 0;  // Σ source²
  float most = 0;     // max |written - source|
};

// Rows of a block: 65,536 values, or one row.
inline std::uint64_t block_rows(std::uint64_t columns) {
  return std::max<std::uint64_t>(1, 65536 / std::max<std::uint64_t>(columns, 1));
}

// Adds differences and values; most is the caller's where the differences are in a rotated basis.
void add_squares(std::span<const float> differences, std::span<const float> values,
                 ErrorSums& sums);
float largest_magnitude(std::span<const float> values);

// Sums by block of a layer. Different blocks may be written by different threads.
class BlockErrors {
 public:
  BlockErrors(std::uint64_t rows, std::uint64_t columns)
      : block_rows_(block_rows(columns)), blocks_((rows + block_rows_ - 1) / block_rows_) {}
  ErrorSums& of_row(std::uint64_t row) { return blocks_[row / block_rows_]; }
  ErrorSums total() const {
    ErrorSums sum;
    for (const ErrorSums& block : blocks_) {
      sum.error += block.error;
      sum.energy += block.energy;
      sum.most = std::max(sum.most, block.most);
    }
    return sum;
  }

 private:
  std::uint64_t block_rows_;
  std::vector<ErrorSums> blocks_;
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_ERROR_SUMS_H_
