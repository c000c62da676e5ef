#include "formats/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/hadamard.h"

namespace parfait::formats {

std::string tensor_text(const TensorInfo& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), shape_text(tensor.shape));
}

// Identify

bool has_only(const Evidence& evidence, std::initializer_list<std::string_view> suffixes) {
  return std::ranges::all_of(evidence.tensors, [&](const Part& part) {
    return part.role == "weight" || part.role == "bias" || part.role == "comfy_quant" ||
           std::ranges::find(suffixes, part.role) != suffixes.end();
  });
}

bool is_matrix(const TensorInfo* tensor) {
  return tensor && tensor->shape.size() == 2 && tensor->shape[0] > 0 && tensor->shape[1] > 0;
}

std::uint64_t value_count(const TensorInfo& tensor) {
  return checked_product(tensor.shape).value_or(0);
}

void settle_shape(Layer& layer, Packing packing) {
  const TensorInfo* weight = layer.part("weight");
  if (!weight || weight->shape.size() < 2) return;
  const auto shape = weight->shape;
  const std::size_t row_axes = shape.size() == 3 ? 2 : 1;
  const std::uint64_t rows = checked_product(shape.first(row_axes)).value_or(0);
  const std::uint64_t stored = checked_product(shape.subspan(row_axes)).value_or(0);
  const std::uint64_t weights = checked_mul(stored, packing.weights).value_or(0);
  if (rows == 0 || weights == 0 || weights % packing.bytes != 0) return;
  layer.rows = rows;
  layer.columns = weights / packing.bytes;
  if (shape.size() == 3) layer.experts = shape[0];
}

void settle_padded_rows(Layer& layer, std::uint64_t row_padding, FindingSink& sink) {
  const TensorInfo* bias = layer.part("bias");
  if (!bias || bias->shape.size() != 1 || layer.rows % row_padding != 0) return;
  const std::uint64_t outputs = bias->shape[0];
  if (outputs == 0 || outputs >= layer.rows || layer.rows - outputs >= row_padding) return;
  sink.add(Severity::note, ErrorCode::part_shape, layer.part("weight")->name,
           fmt::format("{} stored rows", layer.rows), fmt::format("{} outputs", outputs),
           fmt::format("the weight's rows are padded to a multiple of {}; the bias tells how many "
                       "of them are outputs",
                       row_padding));
  layer.rows = outputs;
}

void settle_common(const Marker* marker, const KeysRead& read, Layer& layer, FindingSink& sink) {
  if (!marker) return;
  layer.full_precision = marker->full_precision.value_or(false);
  if (marker->num_experts && static_cast<std::uint64_t>(*marker->num_experts) != layer.experts)
    sink.add(Severity::error, ErrorCode::marker_key, "",
             fmt::format("num_experts {}", *marker->num_experts), fmt::format("{}", layer.experts),
             "the marker counts other experts than the weight's shape does");
  const std::pair<bool, std::string_view> unread[] = {
      {!read.convrot && marker->convrot_groupsize, "convrot_groupsize"},
      {!read.group_size && marker->group_size, "group_size"},
      {!read.quant_group_size && marker->quant_group_size, "quant_group_size"},
      {!read.linear_dtype && marker->linear_dtype, "linear_dtype"}};
  for (const auto& [stands, key] : unread)
    if (stands)
      sink.add(Severity::note, ErrorCode::marker_ignored, "", std::string(key), "",
               fmt::format("{} has no use for this key of its marker", layer.format->name));
}

void settle_rotation(const Marker* marker, Rotates when, Layer& layer, FindingSink& sink) {
  if (when == Rotates::if_asked && !(marker && marker->convrot.value_or(false))) {
    if (marker && marker->convrot_groupsize && !marker->convrot)
      sink.add(Severity::warning, ErrorCode::marker_ignored, "",
               "convrot_groupsize without convrot", "both or neither",
               "the weight was taken as not rotated, as ComfyUI takes it");
    return;
  }
  if (when == Rotates::always && marker && marker->convrot == false)
    sink.add(Severity::error, ErrorCode::marker_key, "", "convrot false", "true, or no such key",
             fmt::format("{} is rotated always; ComfyUI ignores the key, so the weight is either "
                         "misread there or mislabelled here",
                         layer.format->name));
  constexpr std::uint32_t default_group = 256;
  layer.rotate_group = default_group;
  if (marker && marker->convrot_groupsize) {
    layer.rotate_group = static_cast<std::uint32_t>(*marker->convrot_groupsize);
    return;
  }
  sink.add(
      marker ? Severity::note : Severity::warning, ErrorCode::marker_default, "",
      "no convrot_groupsize", "16, 64 or 256",
      "the rotation group was taken as 256, which is ComfyUI's default; SGLang demands the key");
}

void refuse_rotation(const Marker* marker, const Layer& layer, FindingSink& sink) {
  if (!marker || !marker->convrot.value_or(false)) return;
  sink.add(Severity::error, ErrorCode::dialect_rotation, "", marker->object.text(),
           "no key \"convrot\"",
           fmt::format("the marker says that this {} weight is rotated: ComfyUI and SGLang ignore "
                       "the flag, other tools rotate the input, and no reader can tell which its "
                       "writer meant; --compat comfyui reads it as ComfyUI does",
                       layer.format->name));
}

void settle_scale_group(const Marker* marker, std::uint64_t otherwise, std::string_view origin,
                        Layer& layer, FindingSink& sink) {
  if (marker && marker->group_size) {
    layer.scale_group = static_cast<std::uint32_t>(*marker->group_size);
    return;
  }
  constexpr std::uint64_t most = std::numeric_limits<std::uint32_t>::max();
  layer.scale_group = static_cast<std::uint32_t>(std::min(otherwise, most));
  sink.add(Severity::note, ErrorCode::marker_default, "", "no group_size",
           fmt::format("group_size {}", otherwise),
           fmt::format("the scale group was taken as {}, {}", otherwise, origin));
}

// Parts

PartSpec bias_part() {
  return {"bias",
          {"bias"},
          {DType::f32, DType::bf16, DType::f16},
          PartSpec::Need::optional,
          {DType::f8_e4m3}};
}

PartSpec ignored_input_scale() {
  return {"input_scale", {"input_scale", "scale_input"}, {DType::f32}, PartSpec::Need::ignored};
}

PartSpec float_part(std::string_view role, std::vector<std::string_view> suffixes,
                    PartSpec::Need need) {
  return {role, std::move(suffixes), {DType::f32}, need, {DType::bf16, DType::f16}};
}

// Check

bool check_matrix(const Layer& layer, std::string_view expected, FindingSink& sink) {
  if (layer.rows > 0 && layer.columns > 0) return true;
  const TensorInfo& weight = *layer.part("weight");
  sink.add(Severity::error, ErrorCode::part_shape, weight.name, tensor_text(weight),
           std::string(expected),
           fmt::format("the weight's shape is not one that {} has", layer.format->name));
  return false;
}

bool check_shape(const Layer& layer, std::string_view role,
                 std::initializer_list<std::uint64_t> expected, FindingSink& sink) {
  const TensorInfo* tensor = layer.part(role);
  if (!tensor || std::ranges::equal(tensor->shape, expected)) return true;
  sink.add(Severity::error, ErrorCode::part_shape, tensor->name, shape_text(tensor->shape),
           shape_text(std::span(expected.begin(), expected.size())),
           fmt::format("the {} does not fit a weight of {} outputs and {} inputs", role, layer.rows,
                       layer.columns));
  return false;
}

bool check_single(const Layer& layer, std::string_view role, FindingSink& sink) {
  const TensorInfo* tensor = layer.part(role);
  if (!tensor || value_count(*tensor) == 1) return true;
  sink.add(Severity::error, ErrorCode::part_shape, tensor->name, shape_text(tensor->shape),
           "one value",
           tensor->bytes == 0 ? fmt::format("the {} is empty, so it scales nothing", role)
                              : fmt::format("the {} has more values than one", role));
  return false;
}

bool check_row_scales(const Layer& layer, std::string_view role, RowScales kind,
                      FindingSink& sink) {
  const TensorInfo* tensor = layer.part(role);
  if (!tensor) return true;
  const std::uint64_t count = value_count(*tensor);
  if (kind == RowScales::each_or_one && count == 1) return true;
  auto shape = tensor->shape;
  while (!shape.empty() && shape.back() == 1) shape = shape.first(shape.size() - 1);
  const bool flat = shape.size() <= 1;
  const bool by_expert =
      layer.kind == LayerKind::experts && shape.size() == 2 && shape[0] == layer.experts;
  if (count == layer.rows && (flat || by_expert)) return true;
  sink.add(Severity::error, ErrorCode::part_shape, tensor->name, shape_text(tensor->shape),
           fmt::format("[{}{}]{}", layer.rows, kind == RowScales::each_or_one ? ", 1" : "",
                       kind == RowScales::each_or_one ? " or one value" : ""),
           count == 0 ? fmt::format("the {} is empty, so it scales nothing", role)
                      : fmt::format("the {} does not have one value for each of {} rows", role,
                                    layer.rows));
  return false;
}

bool check_rotation(const Layer& layer, FindingSink& sink) {
  const std::uint64_t group = layer.rotate_group;
  if (group == 0) return true;
  if (is_rotation_group(group)) return check_columns(layer, group, "the rotation group", sink);
  sink.add(Severity::error, ErrorCode::layer_group, "", fmt::format("rotation group {}", group),
           "a power of 4: 4, 16, 64, 256, ...",
           fmt::format("K = {} cannot be rotated by {}: the regular Hadamard matrix has no such "
                       "size, and tools that write it use a matrix of their own",
                       layer.columns, group));
  return false;
}

bool check_columns(const Layer& layer, std::uint64_t multiple, std::string_view what,
                   FindingSink& sink) {
  if (multiple != 0 && layer.columns % multiple == 0) return true;
  sink.add(Severity::error, ErrorCode::layer_columns, layer.part("weight")->name,
           fmt::format("K = {}", layer.columns), fmt::format("a multiple of {}", multiple),
           fmt::format("the input width is not a multiple of {}, {}", what, multiple));
  return false;
}

bool check_bias(const Layer& layer, FindingSink& sink) {
  if (layer.kind == LayerKind::experts && layer.part("bias") &&
      layer.part("bias")->shape.size() == 2)
    return check_shape(layer, "bias", {layer.experts, layer.rows / layer.experts}, sink);
  return check_shape(layer, "bias", {layer.rows}, sink);
}

std::uint64_t BlockScales::stored_bytes() const {
  return checked_mul(stored_rows(), stored_columns())
      .value_or(std::numeric_limits<std::uint64_t>::max());
}

bool check_block_scales(const Layer& layer, const BlockScales& scales, FindingSink& sink) {
  const TensorInfo* tensor = layer.part("weight_scale");
  if (!tensor) return true;
  const std::uint64_t stored[] = {scales.stored_rows(), scales.stored_columns()};
  const std::uint64_t logical[] = {scales.rows, scales.columns};
  const bool same = std::ranges::equal(stored, logical);
  if (!same && std::ranges::equal(tensor->shape, logical)) {
    sink.add(Severity::error, ErrorCode::dialect_block_scale, tensor->name, tensor_text(*tensor),
             shape_text(stored),
             "the block scales are in the linear layout of ModelOpt, BFL and SGLang; ComfyUI's are "
             "padded to 128×4 tiles and swizzled, so its readers would take other values");
    return false;
  }
  if (value_count(*tensor) != scales.stored_bytes()) {
    sink.add(Severity::error, ErrorCode::part_shape, tensor->name, tensor_text(*tensor),
             shape_text(stored),
             fmt::format("{} rows of {} blocks have another number of block scales", scales.rows,
                         scales.columns));
    return false;
  }
  if (same)
    sink.add(Severity::warning, ErrorCode::dialect_block_scale, tensor->name, tensor_text(*tensor),
             "",
             "swizzled and linear block scales have the same shape here, so the header cannot tell "
             "them apart; read as swizzled, which is what ComfyUI writes");
  return true;
}

// Size and Decode

std::uint64_t value_bytes(const Layer& layer, std::string_view role) {
  const TensorInfo* tensor = layer.part(role);
  return tensor ? dtype_bits(tensor->dtype) / 8 : 0;
}

std::span<const float, 256> float8_values(DType dtype) {
  using Table = std::array<float, 256>;
  static const auto make = [](DType type) {
    Table table;
    for (unsigned code = 0; code < table.size(); ++code) {
      const auto byte = static_cast<std::byte>(code);
      table[code] = load_float(type, &byte, 0);
    }
    return table;
  };
  static const Table e4m3 = make(DType::f8_e4m3), e5m2 = make(DType::f8_e5m2),
                     e8m0 = make(DType::f8_e8m0);
  return dtype == DType::f8_e5m2 ? e5m2 : dtype == DType::f8_e8m0 ? e8m0 : e4m3;
}

Values::Values(const LayerData& data, std::string_view role, DType bytes_are) {
  const TensorInfo* tensor = data.layer->part(role);
  if (!tensor || dtype_bits(tensor->dtype) < 8) return;
  bytes_ = data.part(role);
  dtype_ = tensor->dtype == DType::u8 ? bytes_are : tensor->dtype;
  if (dtype_ == DType::f8_e4m3 || dtype_ == DType::f8_e5m2 || dtype_ == DType::f8_e8m0)
    table_ = float8_values(dtype_).data();
  size_ = bytes_.size() / (dtype_bits(dtype_) / 8);
}

}  // namespace parfait::formats
