#include "formats/relative_scales.h"

#include "formats/data_checks.h"

namespace parfait::formats {

std::uint64_t proven_group(const Evidence& evidence, unsigned bits) {
  const TensorInfo* weight = evidence.find("weight");
  const TensorInfo* relative = evidence.find("weight_s_rel");
  const TensorInfo* channel = evidence.find("weight_s_channel");
  if (!is_matrix(weight) || weight->dtype != DType::i8 || !is_matrix(relative) || !channel ||
      relative->shape[0] != weight->shape[0] || value_count(*channel) != weight->shape[0])
    return 0;
  const std::uint64_t row_bits = weight->shape[1] * 8;
  if (row_bits % bits != 0) return 0;
  const std::uint64_t columns = row_bits / bits, groups = relative->shape[1];
  return columns % groups == 0 ? columns / groups : 0;
}

std::vector<PartSpec> relative_scale_parts() {
  return {{"weight", {"weight"}, {DType::i8}},
          {"weight_s_rel", {"weight_s_rel"}, {DType::f8_e4m3, DType::u8, DType::f32}},
          float_part("weight_s_channel", {"weight_s_channel"}, PartSpec::Need::required),
          bias_part(),
          ignored_input_scale()};
}

void check_relative_scales(const Layer& layer, std::uint64_t least_columns, FindingSink& sink) {
  check_columns(layer, least_columns, "the packing", sink);
  check_rotation(layer, sink);
  check_bias(layer, sink);
  const bool experts = layer.kind == LayerKind::experts;
  const std::uint64_t rows = layer.rows / layer.experts;
  if (experts) {
    check_shape(layer, "weight_s_channel", {layer.experts, rows}, sink);
  } else {
    check_shape(layer, "weight_s_channel", {rows}, sink);
  }
  if (!check_columns(layer, layer.scale_group, "the scale group", sink)) return;
  const std::uint64_t groups = layer.columns / layer.scale_group;
  if (experts) {
    check_shape(layer, "weight_s_rel", {layer.experts, rows, groups}, sink);
  } else {
    check_shape(layer, "weight_s_rel", {rows, groups}, sink);
  }
}

void check_relative_scale_values(const LayerData& data, FindingSink& sink) {
  // A tiny group's relative scale may round to 0.
  check_scale_values(data, "weight_s_rel", Zeros::allowed, sink, DType::f8_e4m3);
  check_scale_values(data, "weight_s_channel", Zeros::refused, sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
}

std::uint64_t relative_scale_bytes(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t groups = layer.scale_group == 0 ? 0 : columns / layer.scale_group;
  return rows *
         (groups * value_bytes(layer, "weight_s_rel") + value_bytes(layer, "weight_s_channel"));
}

}  // namespace parfait::formats
