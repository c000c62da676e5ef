#include "runtime/ops_rows.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <type_traits>

#include "base/checked.h"
#include "base/result.h"
#include "kernels/norm/norm.h"
#include "kernels/pointwise/pointwise.h"
#include "kernels/rope/rope.h"
#include "runtime/ops.h"
#include "runtime/ops_checks.h"

namespace parfait::runtime {
namespace {

using kernels::Function;
using kernels::Norm;

// Calls work(first, last) for ranges of rows that cover all of them. A piece is long enough to be
// worth a thread's waking, and a multiple of 4 rows, which kernels take at a time.
template <class Work>
void for_rows(Ops& ops, std::uint64_t rows, std::uint64_t columns, const Work& work) {
  constexpr std::uint64_t piece_elements = 32'768;
  if (rows == 0 || columns == 0) return;
  const std::uint64_t step = round_up(ceil_div(piece_elements, columns), 4);
  const auto one = [&](std::uint64_t piece, unsigned) {
    work(piece * step, std::min((piece + 1) * step, rows));
  };
  ops.pool.run(ceil_div(rows, step), std::ref(one));  // a reference: nothing is allocated
}

const float* data_or_null(std::span<const float> values) {
  return values.empty() ? nullptr : values.data();
}

// A run of a matrix's columns.
template <class AnyMatrix>
AnyMatrix columns_of(AnyMatrix matrix, std::uint64_t first, std::uint64_t count) {
  using Byte = std::conditional_t<std::is_same_v<AnyMatrix, Matrix>, std::byte, const std::byte>;
  if (matrix.data)
    matrix.data = static_cast<Byte*>(matrix.data) + first * (dtype_bits(matrix.dtype) / 8);
  matrix.columns = count;
  return matrix;
}

Result<Done> norm(std::string_view name, Norm kind, Ops& ops, const ConstMatrix& x,
                  const NormOptions& options, const Matrix& y) {
  PARFAIT_CHECK_OK(check_operand(name, "x", x, x.rows, x.columns));
  PARFAIT_CHECK_OK(check_operand(name, "y", y, x.rows, x.columns));
  const std::uint64_t segment = options.segment == 0 ? x.columns : options.segment;
  if (segment != 0 && x.columns % segment != 0)
    return make_error(ErrorCode::run_shape, "{}: the {} columns of x are not segments of {}", name,
                      x.columns, segment);
  PARFAIT_CHECK_OK(check_vector(name, "weight", options.weight.size(), segment));
  PARFAIT_CHECK_OK(check_vector(name, "bias", options.bias.size(), segment));
  PARFAIT_CHECK_OK(check_vector(name, "scale", options.scale.size(), segment));
  PARFAIT_CHECK_OK(check_vector(name, "shift", options.shift.size(), segment));
  const kernels::NormKernel& kernel = ops.choose(kernels::norm_kernels());
  const kernels::NormParameters parameters{options.epsilon, data_or_null(options.weight),
                                           data_or_null(options.bias), data_or_null(options.scale),
                                           data_or_null(options.shift)};
  for_rows(ops, x.rows, x.columns, [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t column = 0; column < x.columns; column += segment)
      kernel.run(kind, parameters, columns_of(x, column, segment), first, last,
                 columns_of(y, column, segment));
  });
  return Done{};
}

Result<Done> unary(std::string_view name, Function f, Ops& ops, const ConstMatrix& x,
                   const Matrix& y) {
  PARFAIT_CHECK_OK(check_operand(name, "x", x, x.rows, x.columns));
  PARFAIT_CHECK_OK(check_operand(name, "y", y, x.rows, x.columns));
  const kernels::PointwiseKernel& kernel = ops.choose(kernels::pointwise_kernels());
  for_rows(ops, x.rows, x.columns,
           [&](std::uint64_t first, std::uint64_t last) { kernel.unary(f, x, first, last, y); });
  return Done{};
}

Result<Done> gate_with(std::string_view name, Function f, Ops& ops, const ConstMatrix& gate,
                       const ConstMatrix& up, const Matrix& y) {
  PARFAIT_CHECK_OK(check_operand(name, "gate", gate, gate.rows, gate.columns));
  PARFAIT_CHECK_OK(check_operand(name, "up", up, gate.rows, gate.columns));
  PARFAIT_CHECK_OK(check_operand(name, "y", y, gate.rows, gate.columns));
  const kernels::PointwiseKernel& kernel = ops.choose(kernels::pointwise_kernels());
  for_rows(ops, gate.rows, gate.columns, [&](std::uint64_t first, std::uint64_t last) {
    kernel.gate(f, gate, up, first, last, y);
  });
  return Done{};
}

Function function_of(Gelu kind) {
  return kind == Gelu::erf ? Function::gelu_erf : Function::gelu_tanh;
}

}  // namespace

Result<Done> rms_norm(Ops& ops, const ConstMatrix& x, const NormOptions& options, const Matrix& y) {
  return norm("rms_norm", Norm::rms, ops, x, options, y);
}

Result<Done> layer_norm(Ops& ops, const ConstMatrix& x, const NormOptions& options,
                        const Matrix& y) {
  return norm("layer_norm", Norm::layer, ops, x, options, y);
}

Result<Done> rope(Ops& ops, const ConstMatrix& x, const ConstMatrix& cos, const ConstMatrix& sin,
                  const RopeOptions& options, const Matrix& y) {
  const std::uint64_t size = options.head_size;
  PARFAIT_CHECK_OK(check_operand("rope", "x", x, x.rows, x.columns));
  if (size == 0 || size % 2 != 0)
    return make_error(ErrorCode::run_shape, "rope: heads of {} columns have no pairs", size);
  if (x.columns % size != 0)
    return make_error(ErrorCode::run_shape, "rope: the {} columns of x are not heads of {}",
                      x.columns, size);
  PARFAIT_CHECK_OK(check_operand("rope", "cos", cos, x.rows, size / 2));
  PARFAIT_CHECK_OK(check_operand("rope", "sin", sin, x.rows, size / 2));
  PARFAIT_CHECK_OK(check_operand("rope", "y", y, x.rows, x.columns));
  const kernels::RopeKernel& kernel = ops.choose(kernels::rope_kernels());
  for_rows(ops, x.rows, x.columns, [&](std::uint64_t first, std::uint64_t last) {
    kernel.run(options, x, cos, sin, first, last, y);
  });
  return Done{};
}

Result<Done> silu(Ops& ops, const ConstMatrix& x, const Matrix& y) {
  return unary("silu", Function::silu, ops, x, y);
}

Result<Done> gelu(Ops& ops, const ConstMatrix& x, Gelu kind, const Matrix& y) {
  return unary("gelu", function_of(kind), ops, x, y);
}

Result<Done> silu_gate(Ops& ops, const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y) {
  return gate_with("silu_gate", Function::silu, ops, gate, up, y);
}

Result<Done> gelu_gate(Ops& ops, const ConstMatrix& gate, const ConstMatrix& up, Gelu kind,
                       const Matrix& y) {
  return gate_with("gelu_gate", function_of(kind), ops, gate, up, y);
}

Result<Done> add_gated(Ops& ops, const ConstMatrix& x, std::span<const float> gate,
                       const ConstMatrix& h, const Matrix& y) {
  PARFAIT_CHECK_OK(check_operand("add_gated", "x", x, x.rows, x.columns));
  PARFAIT_CHECK_OK(check_vector("add_gated", "gate", gate.size(), x.columns));
  PARFAIT_CHECK_OK(check_operand("add_gated", "h", h, x.rows, x.columns));
  PARFAIT_CHECK_OK(check_operand("add_gated", "y", y, x.rows, x.columns));
  const kernels::PointwiseKernel& kernel = ops.choose(kernels::pointwise_kernels());
  for_rows(ops, x.rows, x.columns, [&](std::uint64_t first, std::uint64_t last) {
    kernel.add(x, data_or_null(gate), h, first, last, y);
  });
  return Done{};
}

}  // namespace parfait::runtime
