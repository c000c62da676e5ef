#include "convert/target.h"

#include <algorithm>

#include "base/result.h"
#include "container/writer.h"

namespace parfait::convert {
namespace {

Error unlike(std::string_view layer, std::string_view format, std::string_view what) {
  return make_error(ErrorCode::not_sound, "layer {}: as {} it would not be sound: {}",
                    printable(layer), format, what);
}

}  // namespace

formats::WeightShape weight_shape(const formats::Layer& layer) {
  formats::WeightShape shape{layer.kind, {layer.rows, layer.columns}, layer.rows, layer.columns};
  if (layer.kind == LayerKind::experts && layer.experts > 0)
    shape.shape = {layer.experts, layer.rows / layer.experts, layer.columns};
  if (layer.kind == LayerKind::convolution)
    if (const TensorInfo* weight = layer.part("weight"))
      shape.shape.assign(weight->shape.begin(), weight->shape.end());
  return shape;
}

Result<LayerTarget> LayerTarget::settle(const formats::Layer& source, const formats::Format& format,
                                        const formats::EncodeSettings& settings) {
  if (!format.encoder)
    return make_error(ErrorCode::format_unsupported,
                      "layer {}: {} is read, but not written, by this program",
                      printable(source.name), format.name);
  if (std::ranges::find(format.kinds, source.kind) == format.kinds.end())
    return make_error(ErrorCode::layer_kind, "layer {}: {} holds no layers of kind {}",
                      printable(source.name), format.name, layer_kind_name(source.kind));
  LayerTarget target;
  target.format_ = &format;
  target.settings_ = settings;
  target.shape_ = weight_shape(source);
  if (const std::string refusal = format.encoder->refusal(target.shape_, settings);
      !refusal.empty())
    return make_error(ErrorCode::layer_columns, "layer {}: {} cannot hold it: {}",
                      printable(source.name), format.name, refusal);
  target.tensors_ = format.encoder->tensors(target.shape_, settings);
  target.marker_ = format.encoder->marker(target.shape_, settings);

  // As a reader of the file will see it.
  target.infos_ = std::make_shared<std::vector<TensorInfo>>();
  for (const formats::EncodedTensor& tensor : target.tensors_) {
    PARFAIT_TRY(const std::uint64_t bytes,
                container::tensor_bytes({std::string(tensor.suffix), tensor.dtype, tensor.shape}));
    target.infos_->push_back({tensor.suffix, tensor.dtype, tensor.shape, 0, bytes, 0});
  }
  target.written_ = std::make_shared<formats::Layer>();
  formats::Layer& layer = *target.written_;
  layer.name = source.name;
  layer.format = &format;
  layer.kind = source.kind;
  for (const TensorInfo& info : *target.infos_) {
    const auto spec = std::ranges::find_if(format.parts, [&](const formats::PartSpec& part) {
      return std::ranges::find(part.suffixes, info.name) != part.suffixes.end();
    });
    if (spec == format.parts.end())
      return unlike(source.name, format.name, "it has no such part as " + std::string(info.name));
    layer.parts.push_back({spec->role, &info});
  }
  std::vector<Finding> findings;
  formats::FindingSink sink(findings, source.name);
  std::optional<formats::Marker> marker;
  if (!target.marker_.empty()) marker = formats::parse_marker(target.marker_, sink, "comfy_quant");
  format.settle(marker ? &*marker : nullptr, layer, sink);
  if (!sink.has_error()) format.check(layer, sink);
  for (const Finding& finding : findings)
    if (finding.severity == Severity::error)
      return unlike(source.name, format.name, finding.line());
  if (layer.rows != source.rows || layer.columns != source.columns)
    return unlike(source.name, format.name,
                  fmt::format("it would be read as {} × {}, not {} × {}", layer.rows, layer.columns,
                              source.rows, source.columns));
  return target;
}

std::uint64_t LayerTarget::bytes() const {
  std::uint64_t sum = marker_.size();
  for (const TensorInfo& info : *infos_) sum += info.bytes;
  return sum;
}

}  // namespace parfait::convert
