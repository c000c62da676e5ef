#include "runtime/ops_dense.h"

#include <algorithm>
#include <atomic>
#include <new>

#include "base/checked.h"
#include "runtime/ops_checks.h"

namespace parfait::runtime {
namespace {

constexpr std::uint64_t largest_kernel = 15, largest_side = 1 << 20;

// Pieces on all threads; an error if one of them failed, of memory or of the library behind it.
template <class Piece>
Result<Done> run_pieces(Ops& ops, std::string_view op, std::string_view kernel,
                        std::uint64_t pieces, const Piece& piece) {
  std::atomic<bool> failed{false}, no_memory{false};
  ops.scratch.resize(ops.pool.count());
  ops.pool.run(pieces, [&](std::uint64_t i, unsigned thread) {
    try {
      if (!piece(i, ops.scratch[thread])) failed = true;
    } catch (const std::bad_alloc&) {
      no_memory = true;
    }
  });
  if (no_memory)
    return make_error(ErrorCode::out_of_memory, "{}: there is not enough memory for a piece of it",
                      op);
  if (failed)
    return make_error(ErrorCode::run_kind, "{}: {} refused the work, or had no memory for it", op,
                      kernel);
  return Done{};
}

}  // namespace

Result<std::shared_ptr<const DenseWeight>> pack_dense(Ops& ops, const ConstMatrix& w,
                                                      std::span<const float> bias) {
  PARFAIT_CHECK_OK(check_operand("pack_dense", "w", w, w.rows, w.columns));
  PARFAIT_CHECK_OK(check_vector("pack_dense", "bias", bias.size(), w.rows));
  auto weight = std::make_shared<DenseWeight>();
  // A sum of no terms is the bias; oneDNN leaves y as it is.
  weight->kernel =
      w.columns == 0 ? &kernels::dense_kernels().back() : &ops.choose(kernels::dense_kernels());
  weight->packed.bias.assign(bias.begin(), bias.end());
  if (!weight->kernel->pack(w, weight->packed))
    return make_error(ErrorCode::run_kind, "pack_dense: {} refused a weight of [{}, {}]",
                      weight->kernel->name, w.rows, w.columns);
  return std::shared_ptr<const DenseWeight>(std::move(weight));
}

Result<Done> dense(Ops& ops, const ConstMatrix& x, const DenseWeight& w, const Matrix& y) {
  const std::uint64_t N = w.packed.rows, K = w.packed.columns;
  PARFAIT_CHECK_OK(check_operand("dense", "x", x, x.rows, K));
  PARFAIT_CHECK_OK(check_operand("dense", "y", y, x.rows, N));
  const std::uint64_t m_pieces = ceil_div(x.rows, kernels::dense_rows),
                      n_pieces = ceil_div(N, kernels::dense_outputs);
  return run_pieces(ops, "dense", w.kernel->name, m_pieces * n_pieces,
                    [&](std::uint64_t piece, std::vector<float>& scratch) {
                      const std::uint64_t m0 = piece / n_pieces * kernels::dense_rows,
                                          n0 = piece % n_pieces * kernels::dense_outputs;
                      return w.kernel->multiply(
                          w.packed, x, m0, std::min(m0 + kernels::dense_rows, x.rows), n0,
                          std::min(n0 + kernels::dense_outputs, N), y, scratch);
                    });
}

Result<std::shared_ptr<const ConvWeight>> pack_conv(Ops&, const ConstMatrix& w,
                                                    std::uint64_t in_channels,
                                                    const ConvOptions& options,
                                                    std::span<const float> bias) {
  const ConvOptions& o = options;
  PARFAIT_CHECK_OK(check_operand("pack_conv", "w", w, w.rows, w.columns));
  PARFAIT_CHECK_OK(check_vector("pack_conv", "bias", bias.size(), w.rows));
  if (o.kernel_height == 0 || o.kernel_width == 0 || o.kernel_height > largest_kernel ||
      o.kernel_width > largest_kernel || o.stride == 0 || o.stride > largest_kernel ||
      std::max(o.pad_top, o.pad_bottom) >= o.kernel_height ||
      std::max(o.pad_left, o.pad_right) >= o.kernel_width)
    return make_error(ErrorCode::run_shape,
                      "pack_conv: a kernel of {} × {} with stride {} and padding {}, {}, {}, {}: "
                      "sides from 1 to {}, padding below the kernel's side",
                      o.kernel_height, o.kernel_width, o.stride, o.pad_top, o.pad_left,
                      o.pad_bottom, o.pad_right, largest_kernel);
  const auto columns = checked_mul(in_channels, o.kernel_height * o.kernel_width);
  if (!columns || *columns != w.columns)
    return make_error(ErrorCode::run_shape, "pack_conv: w has {} columns, expected {} · {} · {}",
                      w.columns, in_channels, o.kernel_height, o.kernel_width);
  auto weight = std::make_shared<ConvWeight>();
  kernels::PackedConv& packed = weight->packed;
  packed.dtype = w.dtype;
  packed.in_channels = in_channels;
  packed.out_channels = w.rows;
  packed.options = o;
  packed.bias.assign(bias.begin(), bias.end());
  const std::uint64_t row = w.columns * (dtype_bits(w.dtype) / 8);
  packed.plain = kernels::AlignedBytes(w.rows * row);
  for (std::uint64_t n = 0; row != 0 && n < w.rows; ++n)
    std::copy_n(static_cast<const std::byte*>(w.data) + n * w.stride * (dtype_bits(w.dtype) / 8),
                row, packed.plain.data() + n * row);
  return std::shared_ptr<const ConvWeight>(std::move(weight));
}

Result<Done> conv2d(Ops& ops, const ConstMatrix& x, ImageSize size, const ConvWeight& w,
                    const Matrix& y) {
  const kernels::PackedConv& packed = w.packed;
  const ConvOptions& o = packed.options;
  kernels::ConvShape shape{size, {}, packed.in_channels, packed.out_channels, o};
  if (size.height == 0 || size.width == 0 || size.height > largest_side ||
      size.width > largest_side || size.height + o.pad_top + o.pad_bottom < o.kernel_height ||
      size.width + o.pad_left + o.pad_right < o.kernel_width)
    return make_error(ErrorCode::run_shape,
                      "conv2d: an image of {} × {} for a kernel of {} × {}: sides up to {}, and no "
                      "smaller than the kernel with its padding",
                      size.height, size.width, o.kernel_height, o.kernel_width, largest_side);
  shape.out.height = (size.height + o.pad_top + o.pad_bottom - o.kernel_height) / o.stride + 1;
  shape.out.width = (size.width + o.pad_left + o.pad_right - o.kernel_width) / o.stride + 1;
  PARFAIT_CHECK_OK(check_operand("conv2d", "x", x, size.height * size.width, packed.in_channels));
  PARFAIT_CHECK_OK(
      check_operand("conv2d", "y", y, shape.out.height * shape.out.width, packed.out_channels));
  if (packed.out_channels == 0) return Done{};
  const kernels::ConvKernel& kernel = packed.in_channels == 0 ? kernels::conv_kernels().back()
                                                              : ops.choose(kernels::conv_kernels());
  const std::uint64_t rows =
      std::clamp<std::uint64_t>(conv_strip_pixels / shape.out.width, 1, shape.out.height);
  return run_pieces(ops, "conv2d", kernel.name, ceil_div(shape.out.height, rows),
                    [&](std::uint64_t piece, std::vector<float>& scratch) {
                      const std::uint64_t oy0 = piece * rows;
                      return kernel.convolve(packed, shape, x, oy0,
                                             std::min(oy0 + rows, shape.out.height), y, scratch);
                    });
}

}  // namespace parfait::runtime
