#include "convert/best/product.h"

#include <algorithm>
#include <array>

namespace parfait::convert {
namespace {

constexpr std::uint64_t step = 4;    // columns of A at once
constexpr std::uint64_t tile = 256;  // columns of C at once: four rows of B stay near

using Coefficients = std::array<float, step>;

Coefficients load(MatrixView a, std::uint64_t row, std::uint64_t p, std::uint64_t depth) {
  Coefficients out{};  // zeros past the end
  for (std::uint64_t i = 0; i < step && p + i < depth; ++i)
    out[i] = a.data[row * a.row_stride + (p + i) * a.column_stride];
  return out;
}

void subtract_row(float* __restrict c, std::uint64_t columns, const Coefficients& a,
                  const std::array<const float*, step>& b) {
  const float* __restrict b0 = b[0];
  const float* __restrict b1 = b[1];
  const float* __restrict b2 = b[2];
  const float* __restrict b3 = b[3];
  for (std::uint64_t j = 0; j < columns; ++j)
    c[j] -= (a[0] * b0[j] + a[1] * b1[j]) + (a[2] * b2[j] + a[3] * b3[j]);
}

void subtract_two_rows(float* __restrict c, float* __restrict d, std::uint64_t columns,
                       const Coefficients& a, const Coefficients& e,
                       const std::array<const float*, step>& b) {
  const float* __restrict b0 = b[0];
  const float* __restrict b1 = b[1];
  const float* __restrict b2 = b[2];
  const float* __restrict b3 = b[3];
  for (std::uint64_t j = 0; j < columns; ++j) {
    c[j] -= (a[0] * b0[j] + a[1] * b1[j]) + (a[2] * b2[j] + a[3] * b3[j]);
    d[j] -= (e[0] * b0[j] + e[1] * b1[j]) + (e[2] * b2[j] + e[3] * b3[j]);
  }
}

}  // namespace

void subtract_product(float* c, std::uint64_t c_stride, std::uint64_t rows, std::uint64_t columns,
                      std::uint64_t depth, MatrixView a, const float* b, std::uint64_t b_stride) {
  for (std::uint64_t j = 0; j < columns; j += tile) {
    const std::uint64_t width = std::min(tile, columns - j);
    for (std::uint64_t p = 0; p < depth; p += step) {
      std::array<const float*, step> at;
      for (std::uint64_t i = 0; i < step; ++i)
        at[i] = b + std::min(p + i, depth - 1) * b_stride + j;
      std::uint64_t r = 0;
      for (; r + 2 <= rows; r += 2)
        subtract_two_rows(c + r * c_stride + j, c + (r + 1) * c_stride + j, width,
                          load(a, r, p, depth), load(a, r + 1, p, depth), at);
      if (r < rows) subtract_row(c + r * c_stride + j, width, load(a, r, p, depth), at);
    }
  }
}

}  // namespace parfait::convert
