// The public view of a checkpoint: open, look, check, decode, diff.

#include "parfait/checkpoint.h"

#include <algorithm>

#include "base/result.h"
#include "base/text.h"
#include "formats/format.h"
#include "plan/check_access.h"
#include "plan/make_plan.h"

namespace parfait {

std::string_view Layer::name() const { return layer_->name; }
std::string_view Layer::format() const { return layer_->format->name; }
LayerKind Layer::kind() const { return layer_->kind; }
std::uint64_t Layer::rows() const { return layer_->rows; }
std::uint64_t Layer::columns() const { return layer_->columns; }
std::uint64_t Layer::rotate_group() const { return layer_->rotate_group; }
std::uint64_t Layer::scale_group() const { return layer_->scale_group; }
std::uint64_t Layer::stored_bytes() const { return layer_->stored_bytes(); }
std::string_view Layer::source() const { return formats::source_name(layer_->source); }

double Layer::bits_per_weight() const {
  const double weights = static_cast<double>(rows()) * static_cast<double>(columns());
  return weights > 0 ? 8 * static_cast<double>(stored_bytes()) / weights : 0;
}

std::vector<Layer::Part> Layer::parts() const {
  std::vector<Part> parts;
  for (const formats::Part& part : layer_->parts) parts.push_back({part.role, *part.tensor});
  return parts;
}

std::string Layer::line() const {
  std::string group;
  if (rotate_group()) group = fmt::format("rotated by {}", rotate_group());
  if (scale_group())
    group += fmt::format("{}scales by {}", group.empty() ? "" : ", ", scale_group());
  return fmt::format("{}: {} {} {} × {}{}{}, {}, {:.2f} bits a weight", printable(name()), format(),
                     layer_kind_name(kind()), rows(), columns(), group.empty() ? "" : ", ", group,
                     bytes_text(stored_bytes()), bits_per_weight());
}

std::size_t Checkpoint::size() const { return state_->layers.size(); }
Layer Checkpoint::operator[](std::size_t i) const { return Layer(&state_->layers[i]); }

std::optional<Layer> Checkpoint::find(std::string_view name) const {
  const formats::Layer* layer = state_->find(name);
  return layer ? std::optional<Layer>(Layer(layer)) : std::nullopt;
}

std::vector<TensorInfo> Checkpoint::tensors() const {
  const auto tensors = state_->index->tensors();
  return {tensors.begin(), tensors.end()};
}

std::vector<TensorInfo> Checkpoint::plain_tensors() const {
  std::vector<TensorInfo> tensors;
  for (const TensorInfo* tensor : state_->plain_tensors) tensors.push_back(*tensor);
  return tensors;
}

std::vector<ShardInfo> Checkpoint::shards() const {
  std::vector<ShardInfo> shards;
  for (const container::Shard& shard : state_->index->shards())
    shards.push_back({shard.reader->name(), shard.reader->size(), shard.header_bytes, shard.tensors,
                      shard.metadata});
  return shards;
}

std::span<const Finding> Checkpoint::findings() const { return state_->findings; }

Result<Checkpoint> open(const std::filesystem::path& path, const OpenOptions& options) {
  PARFAIT_TRY(container::TensorIndexPtr index, container::open_index(path, options));
  PARFAIT_TRY(std::shared_ptr<const formats::Checkpoint> state,
              formats::detect(std::move(index), {.compat = options.compat}));
  return Checkpoint(std::move(state));
}

Result<CheckReport> check(const Checkpoint& checkpoint, const CheckOptions& options) {
  CheckReport report;
  PARFAIT_TRY(report.findings, formats::check_layers(*checkpoint.state(), options));
  const bool sound = std::ranges::none_of(
      report.findings, [](const Finding& f) { return f.severity == Severity::error; });
  if (sound) report.checked = CheckAccess::make(checkpoint);
  return report;
}

Result<Done> decode(const Checkpoint& checkpoint, const Layer& layer, std::uint64_t first_row,
                    std::uint64_t rows, std::span<float> out) {
  const formats::Layer* found = checkpoint.state()->find(layer.name());
  if (!found)
    return make_error(ErrorCode::layer_not_found, "no layer is named {}", printable(layer.name()));
  if (first_row > found->rows || rows > found->rows - first_row ||
      out.size() / std::max<std::uint64_t>(found->columns, 1) < rows)
    return make_error(ErrorCode::run_shape,
                      "layer {}: rows {} to {} of {} were asked for, with room for {} values",
                      found->name, first_row, first_row + rows, found->rows, out.size());
  // Only a layer that its format finds sound may be decoded: everything below trusts its shapes.
  PARFAIT_CHECK_OK(formats::require_sound(*checkpoint.state(), *found));
  PARFAIT_TRY(const formats::LayerData data,
              formats::read_layer(*checkpoint.state()->index, *found));
  found->format->decode(data, first_row, rows, out.data());
  return Done{};
}

std::vector<FormatInfo> formats_table() {
  static const auto texts = [] {
    std::vector<std::pair<std::string, plan::FormatMethods>> all;
    for (const formats::Format* format : formats::all_formats()) {
      std::string kinds;
      for (LayerKind kind : format->kinds)
        kinds += fmt::format("{}{}", kinds.empty() ? "" : ", ", layer_kind_name(kind));
      all.emplace_back(std::move(kinds), plan::methods_of(format->name));
    }
    return all;
  }();
  std::vector<FormatInfo> table;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const formats::Format& format = *formats::all_formats()[i];
    table.push_back({format.name, format.summary, format.weight_bits, texts[i].first,
                     texts[i].second.methods, texts[i].second.kernels, format.folder});
  }
  return table;
}

}  // namespace parfait
