#include <cmath>
#include <cstddef>

#include "kernels/norm/norm.h"

namespace parfait::kernels {
namespace {

constexpr std::uint64_t lanes = 16;

float joined(float (&partial)[lanes]) {
  for (std::uint64_t width = 1; width < lanes; width *= 2)
    for (std::uint64_t i = 0; i < lanes; i += 2 * width) partial[i] += partial[i + width];
  return partial[0];
}

void norm(Norm kind, const NormParameters& p, const ConstMatrix& x, std::uint64_t first,
          std::uint64_t last, const Matrix& y) {
  const auto* in = static_cast<const std::byte*>(x.data);
  auto* out = static_cast<std::byte*>(y.data);
  const auto D = static_cast<float>(x.columns);
  for (std::uint64_t m = first; m < last; ++m) {
    float mean = 0;
    if (kind == Norm::layer) {
      float sums[lanes] = {};
      for (std::uint64_t c = 0; c < x.columns; ++c)
        sums[c % lanes] += load_float(x.dtype, in, m * x.stride + c);
      mean = joined(sums) / D;
    }
    float squares[lanes] = {};
    for (std::uint64_t c = 0; c < x.columns; ++c) {
      const float d = load_float(x.dtype, in, m * x.stride + c) - mean;
      squares[c % lanes] = std::fma(d, d, squares[c % lanes]);
    }
    const float factor = 1.0f / std::sqrt(joined(squares) / D + p.epsilon);
    for (std::uint64_t c = 0; c < x.columns; ++c) {
      const float n = (load_float(x.dtype, in, m * x.stride + c) - mean) * factor;
      const float affine = std::fma(n, p.weight ? p.weight[c] : 1.0f, p.bias ? p.bias[c] : -0.0f);
      const float value =
          std::fma(affine, 1.0f + (p.scale ? p.scale[c] : 0.0f), p.shift ? p.shift[c] : -0.0f);
      store_float(y.dtype, out, m * y.stride + c, value);
    }
  }
}

}  // namespace

const NormKernel norm_reference = {"norm.reference", Isa::reference, norm};

}  // namespace parfait::kernels
