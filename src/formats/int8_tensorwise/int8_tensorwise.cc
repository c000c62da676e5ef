// int8_tensorwise: int8 codes with one scale for each row or for the tensor, rotated where the
// marker says so. The bytes are in docs/formats/int8_tensorwise.md.

#include <fmt/format.h>

#include <vector>

#include "base/hadamard.h"
#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/int8_tensorwise/layout.h"

namespace parfait::formats {
namespace {

// Identify

// Never by its tensors: a rotated weight has the same ones, and so has convrot_w4a4.
bool claims(const Evidence&) { return false; }

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer);
  settle_common(marker, {.convrot = true}, layer, sink);
  settle_rotation(marker, Rotates::if_asked, layer, sink);
}

// Parts

std::vector<PartSpec> parts() {
  return {{"weight", {"weight"}, {DType::i8}},
          float_part("weight_scale", {"weight_scale"}, PartSpec::Need::required),
          bias_part(),
          ignored_input_scale()};
}

// Check

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K]", sink)) return;
  check_row_scales(layer, "weight_scale", RowScales::each_or_one, sink);
  check_rotation(layer, sink);
  check_bias(layer, sink);
  if (layer.kind == LayerKind::convolution && layer.rotate_group != 0)
    sink.add(Severity::error, ErrorCode::layer_kind, layer.part("weight")->name,
             tensor_text(*layer.part("weight")), "no rotation",
             "a rotated convolution: no writer documents which of its axes it rotates");
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_scale_values(data, "weight_scale", Zeros::allowed, sink);
  check_zero_scaled_rows(data, "weight_scale", Int8Weight::row_bytes(data.layer->columns), sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
  if (data.layer->rotate_group == 0) return;  // a weight that is not rotated may be of any shape
  const ByteCounts counts = count_bytes(data.part("weight"));
  std::vector<CodeCount> codes;
  for (unsigned b = 0; b < counts.size(); ++b)
    codes.push_back({static_cast<float>(static_cast<std::int8_t>(b)), counts[b]});
  check_bell_shape(data, codes, 1.5, sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const TensorInfo* scale = layer.part("weight_scale");
  const bool one = scale && value_count(*scale) == 1;
  return rows * Int8Weight::row_bytes(columns) +
         (one ? 1 : rows) * value_bytes(layer, "weight_scale");
}

// Split

SplitRule split(const Layer& layer) {
  if (layer.kind == LayerKind::convolution) return {1, 0, "a convolution's inputs are not columns"};
  if (layer.kind == LayerKind::experts) return {1, 0, "several experts in one tensor"};
  if (layer.rotate_group == 0) return {1, 1, "no groups of inputs"};
  return {1, layer.rotate_group, fmt::format("ConvRot group {}", layer.rotate_group)};
}

// Decode: W = q · s, then rotated back by the same matrix.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const std::uint64_t columns = data.layer->columns;
  const std::byte* codes = data.part("weight").data();
  const Values scales(data, "weight_scale");
  for (std::uint64_t row = first_row; row < first_row + rows; ++row, out += columns) {
    const std::byte* code = codes + row * Int8Weight::row_bytes(columns);
    const float scale = scales.of_row(row);
    for (std::uint64_t k = 0; k < columns; ++k)
      out[k] = static_cast<float>(static_cast<std::int8_t>(code[k])) * scale;
    if (data.layer->rotate_group != 0) rotate_groups({out, columns}, data.layer->rotate_group);
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 0.012, .kitchen_f32 = 2e-3, .kitchen_f16 = 0.012, .kitchen_bf16 = 0.027};

}  // namespace

extern const Encoder int8_tensorwise_encoder;
extern const Format int8_tensorwise_format;
const Format int8_tensorwise_format = {
    .name = "int8_tensorwise",
    .folder = "int8_tensorwise",
    .summary = "8-bit codes with a scale for each row or the tensor, with or without ConvRot",
    .weight_bits = "8",
    .kinds = {LayerKind::linear, LayerKind::embedding, LayerKind::convolution, LayerKind::experts},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .encoder = &int8_tensorwise_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
