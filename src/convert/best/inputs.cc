#include "convert/best/inputs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/floats.h"
#include "base/hadamard.h"
#include "base/result.h"
#include "convert/best/factor.h"
#include "convert/best/product.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t rows_at_once = 64;  // of H, that a thread takes at once
constexpr float energy_floor = 1e-12f;      // of the mean: columns without inputs count a little

std::vector<float> column_energy(const std::vector<float>& rows, std::uint64_t columns) {
  std::vector<double> sums(columns);
  for (std::size_t at = 0; at < rows.size(); at += columns)
    for (std::uint64_t k = 0; k < columns; ++k)
      sums[k] += static_cast<double>(rows[at + k]) * static_cast<double>(rows[at + k]);
  return {sums.begin(), sums.end()};
}

// The lower triangle of J·XᵀX·J, where X's columns already stand in the reversed order.
void fill_products(std::span<float> h, const std::vector<float>& rows, std::uint64_t columns,
                   float damping, runtime::Threads& threads) {
  const std::uint64_t count = rows.size() / columns;
  threads.run((columns + rows_at_once - 1) / rows_at_once, [&](std::uint64_t piece, unsigned) {
    const std::uint64_t first = piece * rows_at_once;
    const std::uint64_t end = std::min(columns, first + rows_at_once);
    float* out = h.data() + first * columns;
    std::fill_n(out, (end - first) * columns, 0.0f);
    subtract_product(out, columns, end - first, end, count, {rows.data() + first, 1, columns},
                     rows.data(), columns);
    for (std::uint64_t i = first; i < end; ++i) {
      float* row = h.data() + i * columns;
      for (std::uint64_t j = 0; j <= i; ++j) row[j] = -row[j];
      row[i] += damping;
    }
  });
}

void reorder_columns(std::vector<float>& rows, std::span<const std::uint32_t> order) {
  std::vector<float> row(order.size());
  for (std::size_t at = 0; at < rows.size(); at += order.size()) {
    for (std::size_t k = 0; k < order.size(); ++k) row[k] = rows[at + order[k]];
    std::copy(row.begin(), row.end(), rows.begin() + static_cast<std::ptrdiff_t>(at));
  }
}

}  // namespace

std::uint64_t inputs_bytes(std::uint64_t columns, std::uint64_t rows) {
  return (columns * columns + rows * columns + columns * 80) * sizeof(float);
}

Result<Inputs> make_inputs(std::vector<float> rows, std::uint64_t columns, std::uint32_t rotate,
                           float damping, runtime::Threads& threads) {
  if (rotate != 0) rotate_groups(rows, rotate);
  Inputs inputs;
  inputs.columns = columns;
  inputs.energy = column_energy(rows, columns);
  const double total = std::accumulate(inputs.energy.begin(), inputs.energy.end(), 0.0);
  const auto mean = static_cast<float>(total / static_cast<double>(columns));
  if (!std::isfinite(mean))
    return make_error(ErrorCode::data_not_finite,
                      "rows of inputs hold NaN, infinities or values whose squares overflow; "
                      "expected finite activations; capture them again");
  if (!(mean > 0))
    return make_error(ErrorCode::data_all_zero,
                      "all {} rows of inputs are zero; expected real activations; leave the layer "
                      "out of the file",
                      rows.size() / std::max<std::uint64_t>(columns, 1));
  for (float& value : inputs.energy) value = std::max(value, mean * energy_floor);
  inputs.order.resize(columns);
  std::iota(inputs.order.begin(), inputs.order.end(), 0u);
  std::stable_sort(inputs.order.begin(), inputs.order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return inputs.energy[a] > inputs.energy[b];
  });
  std::vector<std::uint32_t> reversed(inputs.order.rbegin(), inputs.order.rend());
  reorder_columns(rows, reversed);
  inputs.factor.resize(columns * columns);
  // Rounding can take a nearly singular H below zero; more damping always lifts it again.
  for (float part = damping; part < 1e6f; part *= 10) {
    fill_products(inputs.factor, rows, columns, part * mean, threads);
    if (factor_of_inverse(inputs.factor, columns, threads)) return inputs;
  }
  return make_error(ErrorCode::data_not_finite,
                    "rows of inputs span more than floats can hold; expected activations; capture "
                    "them again");
}

Result<Calibration> Calibration::open(const std::filesystem::path& path) {
  PARFAIT_TRY(container::TensorIndexPtr index, container::open_index(path, OpenOptions{}));
  for (const TensorInfo& tensor : index->tensors()) {
    const bool floats =
        tensor.dtype == DType::f32 || tensor.dtype == DType::f16 || tensor.dtype == DType::bf16;
    if (!floats || tensor.shape.size() != 2 || tensor.shape[0] == 0 || tensor.shape[1] == 0)
      return make_error(ErrorCode::calibration,
                        "{}: tensor {} is {} of rank {}; expected rows of inputs, F32, F16 or BF16 "
                        "[rows, K]; parfait generate --capture writes such files",
                        printable(path.string()), printable(tensor.name), dtype_name(tensor.dtype),
                        tensor.shape.size());
  }
  return Calibration(std::move(index));
}

const TensorInfo* Calibration::find(std::string_view layer) const {
  if (const TensorInfo* tensor = index_->find(layer)) return tensor;
  return index_->find(std::string(layer) + ".input");
}

std::vector<std::string_view> Calibration::tensors() const {
  std::vector<std::string_view> names;
  for (const TensorInfo& tensor : index_->tensors()) names.push_back(tensor.name);
  return names;
}

Result<Inputs> Calibration::inputs(std::string_view layer, const formats::WeightShape& weight,
                                   const formats::EncodeSettings& settings,
                                   const InputOptions& options, runtime::Threads& threads) const {
  const TensorInfo* tensor = find(layer);
  if (tensor == nullptr)
    return make_error(ErrorCode::calibration,
                      "layer {}: the calibration file has no rows of its inputs; expected a tensor "
                      "{} or {}.input",
                      printable(layer), printable(layer), printable(layer));
  const std::uint64_t rows = tensor->shape[0], columns = tensor->shape[1];
  if (columns != weight.columns)
    return make_error(ErrorCode::calibration,
                      "layer {}: the rows of inputs in the calibration file are {} wide; expected "
                      "the layer's K = {}; is the file of another model?",
                      printable(layer), columns, weight.columns);
  const std::uint64_t taken = std::min(rows, std::max<std::uint64_t>(1, options.max_rows));
  const std::uint64_t needed = inputs_bytes(columns, taken);
  if (columns > max_columns || needed > options.max_memory)
    return make_error(ErrorCode::model_memory,
                      "layer {}: error feedback over K = {} and {} rows of inputs needs {} MB; "
                      "allowed are {} MB; raise --max-memory, or leave the layer out of the "
                      "calibration file",
                      printable(layer), columns, taken, needed >> 20, options.max_memory >> 20);
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan data, index_->read(*tensor, scratch));
  const std::uint64_t row_bytes = columns * dtype_bits(tensor->dtype) / 8;
  std::vector<float> values(taken * columns);
  for (std::uint64_t i = 0; i < taken; ++i)  // evenly strided, the first one included
    widen(tensor->dtype, data.data() + i * rows / taken * row_bytes, columns,
          values.data() + i * columns);
  std::vector<std::byte>().swap(scratch);
  index_->drop(*tensor);
  auto made =
      make_inputs(std::move(values), columns, settings.rotate_group, options.damping, threads);
  if (!made.ok())
    return make_error(made.error().code, "layer {}: {}", printable(layer), made.error().message);
  return made;
}

}  // namespace parfait::convert
