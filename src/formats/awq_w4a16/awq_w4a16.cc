// awq_w4a16: unsigned 4-bit codes with a scale and a zero for each group of inputs. The bytes are
// in docs/formats/awq_w4a16.md.

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "formats/awq_w4a16/layout.h"
#include "formats/common.h"
#include "formats/data_checks.h"

namespace parfait::formats {
namespace {

// Identify

bool claims(const Evidence& evidence) {
  const TensorInfo* weight = evidence.find("weight");
  const TensorInfo* scale = evidence.find("weight_scale");
  const TensorInfo* zeros = evidence.find("weight_zeros");
  if (!zeros) zeros = evidence.find("weight_zero");
  return is_matrix(weight) && weight->dtype == DType::i8 && is_matrix(scale) && is_matrix(zeros) &&
         scale->shape[0] == zeros->shape[0] && scale->shape[1] == weight->shape[0] &&
         zeros->shape[1] == weight->shape[0] && weight->shape[1] * 2 % scale->shape[0] == 0 &&
         has_only(evidence, {"weight_scale", "weight_zeros", "weight_zero"});
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer, {.weights = 2, .bytes = 1});
  settle_common(marker, {.group_size = true}, layer, sink);
  const TensorInfo* scale = layer.part("weight_scale");
  if (marker || !is_matrix(scale)) {
    settle_scale_group(marker, AwqWeight::default_group, "which is ComfyUI's default", layer, sink);
  } else {
    settle_scale_group(nullptr, layer.columns / scale->shape[0], "which the scales' shape tells",
                       layer, sink);
  }
  if (!marker || !marker->convrot.value_or(false)) return;
  sink.add(Severity::error, ErrorCode::dialect_rotation, "", marker->object.text(),
           "no key \"convrot\"", "no tool documents a rotated awq_w4a16 weight");
}

// Parts

std::vector<PartSpec> parts() {
  const std::vector<DType> floats = {DType::bf16, DType::f16, DType::f32};
  return {{"weight", {"weight"}, {DType::i8}},
          {"weight_scale", {"weight_scale"}, floats},
          {"weight_zeros", {"weight_zeros", "weight_zero"}, floats},
          bias_part()};
}

// Check

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K/2]", sink)) return;
  check_bias(layer, sink);
  if (!check_columns(layer, layer.scale_group, "the scale group", sink)) return;
  const std::uint64_t groups = layer.columns / layer.scale_group;
  check_shape(layer, "weight_scale", {groups, layer.rows}, sink);
  check_shape(layer, "weight_zeros", {groups, layer.rows}, sink);
  const TensorInfo &scale = *layer.part("weight_scale"), &zeros = *layer.part("weight_zeros");
  if (scale.dtype != zeros.dtype)
    sink.add(Severity::error, ErrorCode::part_dtype, zeros.name,
             std::string(dtype_name(zeros.dtype)), std::string(dtype_name(scale.dtype)),
             "scales and zeros are of two types, and weights are evaluated in the scales' type");
}

// Groups of scale 0 whose codes are not all the middle one: what they say is lost.
void check_lost_groups(const LayerData& data, FindingSink& sink) {
  const Layer& layer = *data.layer;
  const Values scales(data, "weight_scale");
  const std::byte* codes = data.part("weight").data();
  Tally lost;
  for (std::uint64_t i = 0; i < scales.size(); ++i) {
    if (scales[i] != 0) continue;
    const std::uint64_t first = i / layer.rows * layer.scale_group;
    const std::byte* row = codes + i % layer.rows * AwqWeight::row_bytes(layer.columns);
    bool middle = true;
    for (std::uint64_t k = first; k < first + layer.scale_group; ++k)
      middle &= nibble_low_first(row, k) == AwqWeight::middle_code;
    if (!middle) lost.add(i);
  }
  report_tally(data, "weight_scale", lost, Severity::error, ErrorCode::data_zero_scale,
               "zeros for groups whose codes differ from 8", sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_scale_values(data, "weight_scale", Zeros::allowed, sink);
  check_lost_groups(data, sink);
  check_finite(data, "weight_zeros", sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
  // Codes run from a group's least weight to its greatest: in small groups that alone is flat.
  if (data.layer->scale_group < 32) return;
  const NibbleCounts counts = count_nibbles(data.part("weight"));
  std::vector<CodeCount> codes;
  for (unsigned code = 0; code < counts.size(); ++code)
    codes.push_back({static_cast<float>(code) - 7.5f, counts[code]});
  check_bell_shape(data, codes, 1.3, sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t groups = columns / layer.scale_group * rows;
  return rows * AwqWeight::row_bytes(columns) +
         groups * (value_bytes(layer, "weight_scale") + value_bytes(layer, "weight_zeros"));
}

// Split

SplitRule split(const Layer& layer) {
  const std::uint64_t group = layer.scale_group;
  return {1, std::lcm(group, std::uint64_t{2}), fmt::format("scale group {}", group)};
}

// Decode: W = (code − 8) · scale + zero, each of the two operations rounded to the scales' type.

float rounded(DType dtype, float value) {
  return dtype == DType::bf16  ? round_to_bf16(value)
         : dtype == DType::f16 ? round_to_f16(value)
                               : value;
}

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const Layer& layer = *data.layer;
  const DType dtype = layer.part("weight_scale")->dtype;
  const Values scales(data, "weight_scale"), zeros(data, "weight_zeros");
  const std::byte* codes = data.part("weight").data();
  for (std::uint64_t row = first_row; row < first_row + rows; ++row) {
    const std::byte* code = codes + row * AwqWeight::row_bytes(layer.columns);
    for (std::uint64_t k = 0; k < layer.columns; k += layer.scale_group) {
      const std::uint64_t group = k / layer.scale_group * layer.rows + row;
      float values[16];
      for (int c = 0; c < 16; ++c) {
        const float step = static_cast<float>(c - AwqWeight::middle_code);
        values[c] = rounded(dtype, rounded(dtype, step * scales[group]) + zeros[group]);
      }
      for (std::uint64_t i = k; i < k + layer.scale_group; ++i)
        *out++ = values[nibble_low_first(code, i)];
    }
  }
}

// Encode: not by this project, nor by comfy-kitchen: this format's codes come of a calibration by
// other tools, and rounding to its groups without one is asym_w4a8_int8's work, which does it
// better.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 2e-3, .kitchen_f16 = 2e-3, .kitchen_bf16 = 5e-3};

}  // namespace

extern const Format awq_w4a16_format;
const Format awq_w4a16_format = {
    .name = "awq_w4a16",
    .folder = "awq_w4a16",
    .summary = "unsigned 4-bit codes with a scale and a zero for each group of inputs",
    .weight_bits = "4.5",
    .kinds = {LayerKind::linear},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
