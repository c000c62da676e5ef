// Operations on single elements: SiLU and GELU, gates made of them, and the gated residual sum.
//
//   unary   y = f(x)            f as simd/functions.h defines it, in float
//   gate    y = f(gate) · up    one float multiplication
//   add     y = fma(gate[c], h, x), c the column; x + h where gate is null
//
// rounded once to y's type. Every variant gives the same bits, but for which NaN a NaN is. y may be
// any of the inputs.
#ifndef PARFAIT_KERNELS_POINTWISE_POINTWISE_H_
#define PARFAIT_KERNELS_POINTWISE_POINTWISE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

enum class Function { silu, gelu_erf, gelu_tanh };

struct PointwiseKernel {
  std::string_view name;  // "pointwise.reference"
  Isa isa;
  // Rows [first, last) each. Any row range may run on any thread.
  void (*unary)(Function f, const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
                const Matrix& y);
  void (*gate)(Function f, const ConstMatrix& gate, const ConstMatrix& up, std::uint64_t first,
               std::uint64_t last, const Matrix& y);
  void (*add)(const ConstMatrix& x, const float* gate, const ConstMatrix& h, std::uint64_t first,
              std::uint64_t last, const Matrix& y);
};

// Fastest first, the plain reference last.
std::span<const PointwiseKernel> pointwise_kernels();

// What the list is made of, one a source.
extern const PointwiseKernel pointwise_reference;
#if defined(__x86_64__)
extern const PointwiseKernel pointwise_avx512_vnni, pointwise_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_POINTWISE_POINTWISE_H_
