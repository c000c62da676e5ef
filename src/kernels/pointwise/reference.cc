#include <cmath>
#include <cstddef>

#include "kernels/pointwise/pointwise.h"
#include "kernels/simd/functions.h"

namespace parfait::kernels {
namespace {

float value(const ConstMatrix& matrix, std::uint64_t row, std::uint64_t column) {
  return load_float(matrix.dtype, static_cast<const std::byte*>(matrix.data),
                    row * matrix.stride + column);
}
void set(const Matrix& matrix, std::uint64_t row, std::uint64_t column, float value) {
  store_float(matrix.dtype, static_cast<std::byte*>(matrix.data), row * matrix.stride + column,
              value);
}

float apply(Function f, float x) {
  switch (f) {
    case Function::silu:
      return simd::silu(x);
    case Function::gelu_erf:
      return simd::gelu_erf(x);
    default:
      return simd::gelu_tanh(x);
  }
}

void unary(Function f, const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
           const Matrix& y) {
  for (std::uint64_t m = first; m < last; ++m)
    for (std::uint64_t c = 0; c < x.columns; ++c) set(y, m, c, apply(f, value(x, m, c)));
}

void gate(Function f, const ConstMatrix& gate, const ConstMatrix& up, std::uint64_t first,
          std::uint64_t last, const Matrix& y) {
  for (std::uint64_t m = first; m < last; ++m)
    for (std::uint64_t c = 0; c < up.columns; ++c)
      set(y, m, c, apply(f, value(gate, m, c)) * value(up, m, c));
}

void add(const ConstMatrix& x, const float* gate, const ConstMatrix& h, std::uint64_t first,
         std::uint64_t last, const Matrix& y) {
  for (std::uint64_t m = first; m < last; ++m)
    for (std::uint64_t c = 0; c < x.columns; ++c)
      set(y, m, c,
          gate ? std::fma(gate[c], value(h, m, c), value(x, m, c))
               : value(x, m, c) + value(h, m, c));
}

}  // namespace

const PointwiseKernel pointwise_reference = {"pointwise.reference", Isa::reference, unary, gate,
                                             add};

}  // namespace parfait::kernels
