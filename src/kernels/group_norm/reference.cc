#include <algorithm>
#include <cmath>
#include <cstddef>

#include "kernels/group_norm/group_norm.h"
#include "kernels/simd/functions.h"

namespace parfait::kernels {
namespace {

float value(const ConstMatrix& matrix, std::uint64_t row, std::uint64_t column) {
  return load_float(matrix.dtype, static_cast<const std::byte*>(matrix.data),
                    row * matrix.stride + column);
}

void sums(const ConstMatrix& x, std::uint64_t first, std::uint64_t last, float* out) {
  std::fill_n(out, x.columns, 0.0f);
  for (std::uint64_t m = first; m < last; ++m)
    for (std::uint64_t c = 0; c < x.columns; ++c) out[c] += value(x, m, c);
}

void squares(const ConstMatrix& x, std::uint64_t first, std::uint64_t last, const float* mean,
             float* out) {
  std::fill_n(out, x.columns, 0.0f);
  for (std::uint64_t m = first; m < last; ++m) {
    for (std::uint64_t c = 0; c < x.columns; ++c) {
      const float d = value(x, m, c) - mean[c];
      out[c] = std::fma(d, d, out[c]);
    }
  }
}

void normalise(const ConstMatrix& x, const ChannelParameters& p, AfterNorm after,
               std::uint64_t first, std::uint64_t last, const Matrix& y) {
  for (std::uint64_t m = first; m < last; ++m) {
    for (std::uint64_t c = 0; c < x.columns; ++c) {
      float n = std::fma(value(x, m, c) - p.mean[c], p.factor[c], p.bias[c]);
      if (after == AfterNorm::silu) n = simd::silu(n);
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + c, n);
    }
  }
}

}  // namespace

const GroupNormKernel group_norm_reference = {"group_norm.reference", Isa::reference, sums, squares,
                                              normalise};

}  // namespace parfait::kernels
