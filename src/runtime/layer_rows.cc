#include "runtime/layer_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/result.h"
#include "runtime/model.h"

namespace parfait::runtime {
namespace {

// Rows as the weight's tensor has them; a writer may have padded their number.
std::uint64_t stored_rows(const formats::Layer& layer, const TensorInfo& weight) {
  if (weight.shape.empty()) return 0;
  return layer.kind == LayerKind::experts && weight.shape.size() > 2
             ? weight.shape[0] * weight.shape[1]
             : weight.shape[0];
}

}  // namespace

Result<LayerRows> LayerRows::open(const formats::Checkpoint& source, const formats::Layer& layer) {
  LayerRows rows;
  rows.source_ = &source;
  rows.layer_ = &layer;
  rows.data_.layer = &layer;
  rows.data_.data.resize(layer.parts.size());
  rows.data_.scratch.resize(layer.parts.size());
  for (std::size_t i = 0; i < layer.parts.size(); ++i) {
    const formats::Part& part = layer.parts[i];
    if (!part.tensor || part.role == "bias") continue;
    if (part.role != "weight") {
      PARFAIT_TRY(rows.data_.data[i], source.index->read(*part.tensor, rows.data_.scratch[i]));
      continue;
    }
    rows.weight_ = part.tensor;
    rows.row_bytes_ =
        part.tensor->bytes / std::max<std::uint64_t>(stored_rows(layer, *part.tensor), 1);
    // A mapping gives its own bytes; what pread reads lies in the scratch that it was given.
    std::vector<std::byte> probe;
    const io::Reader& reader = *source.index->shards()[part.tensor->shard].reader;
    const std::uint64_t one = part.tensor->bytes > 0 ? 1 : 0;
    PARFAIT_TRY(const ByteSpan byte, reader.read(part.tensor->offset, one, probe));
    if (one && byte.data() == probe.data()) {
      PARFAIT_TRY(rows.window_, Window::reserve(part.tensor->bytes));
      rows.data_.data[i] = rows.window_->bytes();
    } else {
      PARFAIT_TRY(rows.data_.data[i], source.index->read(*part.tensor, probe));
    }
  }
  if (!rows.weight_)
    return make_error(ErrorCode::part_missing, "layer {}: has no weight", printable(layer.name));
  rows.plain_ = layer.format->folder == "plain";
  if (const TensorInfo* factors = layer.part("pre_quant_scale")) {
    const ByteSpan bytes = rows.data_.part("pre_quant_scale");
    for (std::uint64_t k = 0; k < layer.columns; ++k)
      rows.column_factors_.push_back(load_float(factors->dtype, bytes.data(), k));
  }
  return rows;
}

// Has the rows' bytes at their place in data_.
Result<Done> LayerRows::fetch(std::uint64_t first, std::uint64_t count) {
  const io::Reader& reader = *source_->index->shards()[weight_->shard].reader;
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes,
              reader.read(weight_->offset + first * row_bytes_, count * row_bytes_, scratch));
  if (window_ && !bytes.empty())
    std::memcpy(window_->data() + first * row_bytes_, bytes.data(), bytes.size());
  return Done{};
}

Result<Done> LayerRows::decode(std::uint64_t first, std::uint64_t count, float* out) {
  PARFAIT_CHECK_OK(fetch(first, count));
  layer_->format->decode(data_, first, count, out);
  return Done{};
}

Result<Done> LayerRows::read(std::uint64_t first, std::uint64_t count, float* out) {
  PARFAIT_CHECK_OK(decode(first, count, out));
  if (!column_factors_.empty())
    for (std::uint64_t row = 0; row < count; ++row)
      for (std::uint64_t k = 0; k < layer_->columns; ++k)
        out[row * layer_->columns + k] *= column_factors_[k];
  return require_finite(first, count, out);
}

Result<ConstMatrix> LayerRows::view(std::uint64_t first, std::uint64_t count) {
  PARFAIT_CHECK_OK(fetch(first, count));
  return ConstMatrix{data_.part("weight").data() + first * row_bytes_, weight_->dtype, count,
                     layer_->columns, layer_->columns};
}

Result<Done> LayerRows::require_finite(std::uint64_t first, std::uint64_t count,
                                       const float* values) const {
  const std::uint64_t columns = layer_->columns;
  if (formats::all_finite({values, count * columns})) return Done{};
  std::uint64_t at = 0;
  while (std::isfinite(values[at])) ++at;
  return make_error(ErrorCode::data_not_finite,
                    "layer {}: the value in row {}, column {} of its weight is {}; a layer with "
                    "such values is not encoded (a recipe can keep it as it is)",
                    printable(layer_->name), first + at / columns, at % columns,
                    std::isnan(values[at]) ? "NaN" : "infinite");
}

void LayerRows::drop(std::uint64_t first, std::uint64_t count) {
  if (window_)
    window_->drop(first * row_bytes_, count * row_bytes_);
  else
    source_->index->shards()[weight_->shard].reader->drop(weight_->offset + first * row_bytes_,
                                                          count * row_bytes_);
}

// --- Lookup ---

Result<Done> lookup(const formats::Checkpoint& source, const formats::Layer& table,
                    std::span<const std::int64_t> ids, const Matrix& y) {
  PARFAIT_CHECK_OK(check_lookup(table.name, table.rows, table.columns, ids, y));
  // Each row once, in the order of the file.
  std::vector<std::size_t> order(ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return ids[i]; });
  PARFAIT_TRY(LayerRows rows, LayerRows::open(source, table));
  std::vector<float> row(table.columns);
  std::int64_t held = -1;
  for (const std::size_t i : order) {
    if (ids[i] != held) {
      held = ids[i];
      PARFAIT_CHECK_OK(rows.decode(static_cast<std::uint64_t>(held), 1, row.data()));
      rows.drop(static_cast<std::uint64_t>(held), 1);
    }
    for (std::uint64_t k = 0; k < table.columns; ++k)
      store_float(y.dtype, static_cast<std::byte*>(y.data), i * y.stride + k, row[k]);
  }
  return Done{};
}

std::uint64_t lookup_bytes(const formats::Layer& table, std::uint64_t ids) {
  // A page at either end of a row may be there with it; and the parts that belong to all rows.
  constexpr std::uint64_t page = 4096;
  std::uint64_t bytes = 4 * table.columns;
  for (const formats::Part& part : table.parts) {
    if (!part.tensor || part.role == "bias") continue;
    const std::uint64_t row = part.tensor->bytes / std::max<std::uint64_t>(table.rows, 1);
    bytes += part.role == "weight" ? std::min(part.tensor->bytes, ids * (row + 2 * page))
                                   : part.tensor->bytes;
  }
  return bytes;
}

}  // namespace parfait::runtime
