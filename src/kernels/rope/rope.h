// Rotary position embedding: pairs of columns of each head turn by an angle of the row and pair.
//
//   x [M, heads · S], S the head size, even;  cos, sin [M, S/2], any of the three types
//   pair i of a head: (a, b) = columns (2i, 2i + 1), or (i, i + S/2)
//   y = (fma(a, cos, −(b · sin)), fma(b, cos, a · sin)), in float, rounded once to y's type
//
// Every variant gives the same bits, but for which NaN a NaN is. y may be x.
#ifndef PARFAIT_KERNELS_ROPE_ROPE_H_
#define PARFAIT_KERNELS_ROPE_ROPE_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/ops.h"

namespace parfait::kernels {

struct RopeKernel {
  std::string_view name;  // "rope.reference"
  Isa isa;
  // Rows [first, last). Any row range may run on any thread.
  void (*run)(const RopeOptions& options, const ConstMatrix& x, const ConstMatrix& cos,
              const ConstMatrix& sin, std::uint64_t first, std::uint64_t last, const Matrix& y);
};

// Fastest first, the plain reference last.
std::span<const RopeKernel> rope_kernels();

// What the list is made of, one a source.
extern const RopeKernel rope_reference;
#if defined(__x86_64__)
extern const RopeKernel rope_avx512_vnni, rope_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_ROPE_ROPE_H_
