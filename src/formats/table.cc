#include <algorithm>
#include <array>

#include "base/result.h"
#include "formats/format.h"

namespace parfait::formats {

#define PARFAIT_FORMAT(object, folder) extern const Format object##_format;
#include "formats/formats.inc"
#undef PARFAIT_FORMAT

std::span<const Format* const> all_formats() {
  static const Format* const table[] = {
#define PARFAIT_FORMAT(object, folder) &object##_format,
#include "formats/formats.inc"
#undef PARFAIT_FORMAT
  };
  return table;
}

const Format* find_format(std::string_view name) {
  for (const Format* format : all_formats())
    if (format->name == name) return format;
  return nullptr;
}

std::string known_format_names() {
  std::string names;
  for (const Format* format : all_formats()) {
    if (format->folder == "plain") continue;  // never declared
    if (!names.empty()) names += ", ";
    names += format->name;
  }
  return names;
}

std::string_view source_name(Source source) {
  constexpr std::array<std::string_view, 5> names = {"marker", "header table", "quant_format",
                                                     "legacy scaled_fp8", "tensors"};
  return names[static_cast<std::size_t>(source)];
}

void FindingSink::add(Severity severity, ErrorCode code, std::string_view tensor, std::string got,
                      std::string expected, std::string message) {
  if (severity == Severity::error) has_error_ = true;
  out_.push_back(Finding{code, severity, std::string(layer_), std::string(tensor), std::move(got),
                         std::move(expected), std::move(message), std::string(file_)});
}

const TensorInfo* Layer::part(std::string_view role) const {
  for (const Part& part : parts)
    if (part.role == role) return part.tensor;
  return nullptr;
}

std::uint64_t Layer::stored_bytes() const {
  std::uint64_t bytes = 0;
  for (const Part& part : parts) bytes += part.tensor->bytes;
  return bytes;
}

const TensorInfo* Evidence::find(std::string_view suffix) const {
  for (const Part& part : tensors)
    if (part.role == suffix) return part.tensor;
  return nullptr;
}

ByteSpan LayerData::part(std::string_view role) const {
  for (std::size_t i = 0; i < data.size(); ++i)
    if (layer->parts[i].role == role) return data[i];
  return {};
}

Result<LayerData> read_layer(const container::TensorIndex& index, const Layer& layer) {
  LayerData result;
  result.layer = &layer;
  result.data.resize(layer.parts.size());
  result.scratch.resize(layer.parts.size());
  for (std::size_t i = 0; i < layer.parts.size(); ++i) {
    PARFAIT_TRY(result.data[i], index.read(*layer.parts[i].tensor, result.scratch[i]));
  }
  return result;
}

const Layer* Checkpoint::find(std::string_view name) const {
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : &layers[it->second];
}

}  // namespace parfait::formats
