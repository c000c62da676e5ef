// The factor of an inverse: from H, symmetric and positive definite, the upper triangular U with
// H⁻¹ = UᵀU.
//
// With J the reversal of order, L the Cholesky factor of J·H·J: H⁻¹ = J·L⁻ᵀ·L⁻¹·J, so U = J·L⁻¹·J.
// All of it in place, in float, in blocks of a fixed size: the same bits for any number of threads.
#ifndef PARFAIT_CONVERT_BEST_FACTOR_H_
#define PARFAIT_CONVERT_BEST_FACTOR_H_

#include <cstdint>
#include <span>

#include "runtime/threads.h"

namespace parfait::convert {

// `a` is size × size, row-major. In: the lower triangle of J·H·J; what stands above it is not
// looked at. Out: U, zeros below its diagonal. False where H is not positive definite (a is then
// without meaning).
bool factor_of_inverse(std::span<float> a, std::uint64_t size, runtime::Threads& threads);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_FACTOR_H_
