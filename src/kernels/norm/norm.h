// RMSNorm and LayerNorm over the columns of a row, with weight, bias and modulation in one pass.
//
//   x [M, D]   μ = Σ x / D for layer_norm, 0 for rms_norm
//   d = x − μ;  σ² = Σ d² / D;  n = d · (1 / √(σ² + ε))
//   y = (n · weight + bias) · (1 + scale) + shift, two fused multiply-adds, rounded once to y's
//   type
//
// in float, D too, with true divisions and a true square root. A sum has 16 partial sums that begin
// at 0, partial i over columns ≡ i (mod 16) in ascending order (of squares by fused multiply-add),
// joined as a binary tree of neighbours. A vector that is left out stands for 1 (weight), −0 (bias,
// shift) or 0 (scale): exactly what leaving the operation out gives. Every variant gives the same
// bits, but for which NaN a NaN is. y may be x: each row is read from memory once, then from a
// cache, and written last.
#ifndef PARFAIT_KERNELS_NORM_NORM_H_
#define PARFAIT_KERNELS_NORM_NORM_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

enum class Norm { rms, layer };

struct NormParameters {
  float epsilon = 1e-6f;
  const float *weight = nullptr, *bias = nullptr, *scale = nullptr, *shift = nullptr;  // D or null
};

struct NormKernel {
  std::string_view name;  // "norm.reference"
  Isa isa;
  // Rows [first, last). Any row range may run on any thread.
  void (*run)(Norm kind, const NormParameters& parameters, const ConstMatrix& x,
              std::uint64_t first, std::uint64_t last, const Matrix& y);
};

// Fastest first, the plain reference last.
std::span<const NormKernel> norm_kernels();

// What the list is made of, one a source.
extern const NormKernel norm_reference;
#if defined(__x86_64__)
extern const NormKernel norm_avx512_vnni, norm_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_NORM_NORM_H_
