// Checks of arguments that the operations share.
#ifndef PARFAIT_RUNTIME_OPS_CHECKS_H_
#define PARFAIT_RUNTIME_OPS_CHECKS_H_

#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "parfait/ops.h"

namespace parfait::runtime {

// A matrix of an activation's type, of this shape, whose rows do not overlap. op and what are named
// in the error: "rms_norm", "y".
Result<Done> check_operand(std::string_view op, std::string_view what, const ConstMatrix& matrix,
                           std::uint64_t rows, std::uint64_t columns);
inline Result<Done> check_operand(std::string_view op, std::string_view what, const Matrix& m,
                                  std::uint64_t rows, std::uint64_t columns) {
  return check_operand(op, what, ConstMatrix{m.data, m.dtype, m.rows, m.columns, m.stride}, rows,
                       columns);
}
// A vector of parameters: empty, or that long.
Result<Done> check_vector(std::string_view op, std::string_view what, std::uint64_t size,
                          std::uint64_t want);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_CHECKS_H_
