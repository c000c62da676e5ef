#include "runtime/ops.h"

#include "base/checked.h"
#include "base/text.h"
#include "runtime/ops_checks.h"

namespace parfait::runtime {

Result<Done> check_operand(std::string_view op, std::string_view what, const ConstMatrix& matrix,
                           std::uint64_t rows, std::uint64_t columns) {
  if (matrix.dtype != DType::f32 && matrix.dtype != DType::f16 && matrix.dtype != DType::bf16)
    return make_error(ErrorCode::run_dtype, "{}: {} is {}, where F32, F16 or BF16 is taken", op,
                      what, dtype_name(matrix.dtype));
  if (matrix.rows != rows || matrix.columns != columns)
    return make_error(ErrorCode::run_shape, "{}: {} is [{}, {}], expected [{}, {}]", op, what,
                      matrix.rows, matrix.columns, rows, columns);
  if (matrix.stride < columns)
    return make_error(ErrorCode::run_shape,
                      "{}: rows of {} are {} elements long but start {} apart", op, what, columns,
                      matrix.stride);
  if (!matrix.data && rows != 0 && columns != 0)
    return make_error(ErrorCode::run_shape, "{}: {} has no data", op, what);
  return Done{};
}

Result<Done> check_vector(std::string_view op, std::string_view what, std::uint64_t size,
                          std::uint64_t want) {
  if (size != 0 && size != want)
    return make_error(ErrorCode::run_shape, "{}: {} has {} values, expected {}", op, what, size,
                      want);
  return Done{};
}

}  // namespace parfait::runtime
