// Products of matrices of floats, as the factor of inputs and error feedback need them.
#ifndef PARFAIT_CONVERT_BEST_PRODUCT_H_
#define PARFAIT_CONVERT_BEST_PRODUCT_H_

#include <cstdint>

namespace parfait::convert {

// Row-major, or transposed by its strides.
struct MatrixView {
  const float* data = nullptr;
  std::uint64_t row_stride = 0, column_stride = 1;
};

// C -= A·B, where C is rows × columns, A rows × depth, B depth × columns and row-major. In float,
// by columns of A in fours, in order: each value of C depends on nothing else, so C may be cut into
// parts in any way.
void subtract_product(float* c, std::uint64_t c_stride, std::uint64_t rows, std::uint64_t columns,
                      std::uint64_t depth, MatrixView a, const float* b, std::uint64_t b_stride);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_PRODUCT_H_
