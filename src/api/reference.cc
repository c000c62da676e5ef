// The reference product: plain, slow, in double.

#include <algorithm>

#include "base/checked.h"
#include "base/floats.h"
#include "base/result.h"
#include "formats/format.h"
#include "parfait/model.h"
#include "runtime/threads.h"

namespace parfait {
namespace {

constexpr std::uint64_t lanes = 8;  // partial sums: what a compiler turns into vectors

double dot(const double* x, const float* w, std::uint64_t columns) {
  double sums[lanes] = {};
  std::uint64_t k = 0;
  for (; k + lanes <= columns; k += lanes)
    for (std::uint64_t i = 0; i < lanes; ++i) sums[i] += x[k + i] * static_cast<double>(w[k + i]);
  for (; k < columns; ++k) sums[0] += x[k] * static_cast<double>(w[k]);
  double sum = 0;
  for (double s : sums) sum += s;
  return sum;
}

std::vector<double> to_doubles(const formats::LayerData& data, std::string_view role) {
  const TensorInfo* tensor = data.layer->part(role);
  if (!tensor) return {};
  const ByteSpan bytes = data.part(role);
  std::vector<double> values(checked_product(tensor->shape).value_or(0));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<double>(load_float(tensor->dtype, bytes.data(), i));
  return values;
}

Result<Done> check_shapes(const formats::Layer& layer, const ConstMatrix& x,
                          std::span<const float> y) {
  if (layer.kind != LayerKind::linear)
    return make_error(ErrorCode::run_kind,
                      "layer {}: is of kind {}, which is not run as a linear layer",
                      printable(layer.name), layer_kind_name(layer.kind));
  if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
    return make_error(ErrorCode::run_dtype, "layer {}: x is {}, where F32, F16 or BF16 is taken",
                      printable(layer.name), dtype_name(x.dtype));
  const auto values = checked_mul(x.rows, layer.rows);
  if (x.columns != layer.columns || x.stride < x.columns || !values || *values != y.size())
    return make_error(ErrorCode::run_shape,
                      "layer {}: x is [{}, {}] and y has {} values, where the layer is {} × {}",
                      printable(layer.name), x.rows, x.columns, y.size(), layer.rows,
                      layer.columns);
  return Done{};
}

}  // namespace

Result<Done> reference_linear(const Checkpoint& checkpoint, const Layer& which, ConstMatrix x,
                              std::span<float> y, unsigned threads,
                              const ProgressCallback& progress) {
  const formats::Layer* layer = checkpoint.state()->find(which.name());
  if (!layer)
    return make_error(ErrorCode::layer_not_found, "no layer is named {}", printable(which.name()));
  PARFAIT_CHECK_OK(check_shapes(*layer, x, y));
  PARFAIT_CHECK_OK(formats::require_sound(*checkpoint.state(), *layer));
  PARFAIT_TRY(const formats::LayerData data,
              formats::read_layer(*checkpoint.state()->index, *layer));
  const std::uint64_t rows = layer->rows, columns = layer->columns;
  const std::vector<double> bias = to_doubles(data, "bias");
  const std::vector<double> input_scale = to_doubles(data, "pre_quant_scale");
  std::vector<double> input(x.rows * columns);
  for (std::uint64_t m = 0; m < x.rows; ++m) {
    for (std::uint64_t k = 0; k < columns; ++k) {
      double value = static_cast<double>(
          load_float(x.dtype, static_cast<const std::byte*>(x.data), m * x.stride + k));
      if (!input_scale.empty()) value *= input_scale[k];
      input[m * columns + k] = value;
    }
  }

  // About 1 MB of decoded rows on each thread.
  const std::uint64_t tile =
      std::clamp<std::uint64_t>((1u << 18) / std::max<std::uint64_t>(columns, 1), 1, 64);
  runtime::Threads pool(threads);
  std::vector<std::vector<float>> tiles(pool.count());
  Progress state{0, rows, layer->name};
  // Some tiles at a time, so that the caller is asked now and then.
  const std::uint64_t round = tile * pool.count() * 4;
  for (std::uint64_t first = 0; first < rows; first += round) {
    state.done = first;
    if (progress && !progress(state))
      return make_error(ErrorCode::cancelled, "the comparison of layer {} was cancelled",
                        printable(layer->name));
    const std::uint64_t last = std::min(first + round, rows);
    pool.run(ceil_div(last - first, tile), [&](std::uint64_t piece, unsigned thread) {
      const std::uint64_t n0 = first + piece * tile, n1 = std::min(n0 + tile, last);
      std::vector<float>& weights = tiles[thread];
      weights.resize(tile * columns);
      layer->format->decode(data, n0, n1 - n0, weights.data());
      for (std::uint64_t m = 0; m < x.rows; ++m)
        for (std::uint64_t n = n0; n < n1; ++n)
          y[m * rows + n] = static_cast<float>(
              dot(input.data() + m * columns, weights.data() + (n - n0) * columns, columns) +
              (bias.empty() ? 0 : bias[n]));
    });
  }
  return Done{};
}

}  // namespace parfait
