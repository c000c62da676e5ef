#include <cmath>
#include <cstddef>

#include "kernels/rope/rope.h"

namespace parfait::kernels {
namespace {

float value(const ConstMatrix& matrix, std::uint64_t row, std::uint64_t column) {
  return load_float(matrix.dtype, static_cast<const std::byte*>(matrix.data),
                    row * matrix.stride + column);
}

void rope(const RopeOptions& options, const ConstMatrix& x, const ConstMatrix& cos,
          const ConstMatrix& sin, std::uint64_t first, std::uint64_t last, const Matrix& y) {
  auto* out = static_cast<std::byte*>(y.data);
  const std::uint64_t size = options.head_size, half = size / 2;
  const bool adjacent = options.pairs == RopePairs::adjacent;
  for (std::uint64_t m = first; m < last; ++m) {
    for (std::uint64_t head = 0; head < x.columns; head += size) {
      for (std::uint64_t i = 0; i < half; ++i) {
        const std::uint64_t at_a = head + (adjacent ? 2 * i : i);
        const std::uint64_t at_b = adjacent ? at_a + 1 : at_a + half;
        const float a = value(x, m, at_a), b = value(x, m, at_b);
        const float c = value(cos, m, i), s = value(sin, m, i);
        store_float(y.dtype, out, m * y.stride + at_a, std::fma(a, c, -(b * s)));
        store_float(y.dtype, out, m * y.stride + at_b, std::fma(b, c, a * s));
      }
    }
  }
}

}  // namespace

const RopeKernel rope_reference = {"rope.reference", Isa::reference, rope};

}  // namespace parfait::kernels
