// asym_w4a8_int8: rotated 4-bit codes that a codebook and a scale for each group turn into int8
// weights. The bytes are in docs/formats/asym_w4a8_int8.md.

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <vector>

#include "base/hadamard.h"
#include "formats/asym_w4a8_int8/layout.h"
#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/relative_scales.h"

namespace parfait::formats {
namespace {

using Weight = AsymW4A8Weight;

bool is_scale_group(std::uint64_t group) {
  return group >= 4 && (16 % group == 0 || group % 16 == 0);
}

// Identify

// The widths must fit groups of 4-bit codes and no groups of w6a8_int8's 6-bit ones, unless there
// is a codebook or a correction, which only this format has.
bool claims(const Evidence& evidence) {
  if (!is_scale_group(proven_group(evidence, 4)) ||
      !has_only(evidence, {"weight_s_rel", "weight_s_channel", "weight_codebook",
                           "weight_correction", "input_scale", "scale_input"}))
    return false;
  const std::uint64_t six_bit_group = proven_group(evidence, 6);
  return six_bit_group == 0 || six_bit_group % 16 != 0 || evidence.find("weight_codebook") ||
         evidence.find("weight_correction");
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer, {.weights = 2, .bytes = 1});
  settle_common(marker, {.convrot = true, .group_size = true}, layer, sink);
  settle_rotation(marker, Rotates::always, layer, sink);
  const TensorInfo* relative = layer.part("weight_s_rel");
  if (marker || !is_matrix(relative)) {
    settle_scale_group(marker, Weight::default_group, "which is ComfyUI's default", layer, sink);
  } else {
    settle_scale_group(nullptr, layer.columns / relative->shape[1], "which the scales' shape tells",
                       layer, sink);
  }
}

// Parts

std::vector<PartSpec> parts() {
  std::vector<PartSpec> all = relative_scale_parts();
  all.push_back(float_part("weight_codebook", {"weight_codebook"}, PartSpec::Need::optional));
  all.push_back({"weight_correction",
                 {"weight_correction"},
                 {DType::f32, DType::bf16, DType::f16},
                 PartSpec::Need::optional});
  return all;
}

// Check

void check_correction(const Layer& layer, FindingSink& sink) {
  const TensorInfo* correction = layer.part("weight_correction");
  if (!correction || layer.scale_group == 0) return;
  if (layer.kind == LayerKind::experts) {
    sink.add(Severity::error, ErrorCode::part_shape, correction->name, tensor_text(*correction),
             "no such tensor", "no tool documents a correction for several experts");
    return;
  }
  if (!check_shape(layer, "weight_correction", {layer.columns / layer.scale_group, layer.rows},
                   sink))
    return;
  sink.add(Severity::warning, ErrorCode::dialect_correction, correction->name,
           tensor_text(*correction), "",
           "the correction was read, as comfy-kitchen and SGLang do; ComfyUI leaves it out, so its "
           "results differ");
}

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K/2]", sink)) return;
  if (!is_scale_group(layer.scale_group)) {
    sink.add(
        Severity::error, ErrorCode::layer_group, "",
        fmt::format("group_size {}", layer.scale_group), "4, 8, 16 or a multiple of 16",
        fmt::format("K = {} cannot be in scale groups of {}", layer.columns, layer.scale_group));
    return;
  }
  check_relative_scales(layer, Weight::pack_columns, sink);
  check_shape(layer, "weight_codebook", {Weight::codebook_size}, sink);
  check_correction(layer, sink);
}

std::array<float, Weight::codebook_size> levels_of(const LayerData& data) {
  std::array<float, Weight::codebook_size> levels;
  const Values codebook(data, "weight_codebook");
  for (std::size_t c = 0; c < levels.size(); ++c)
    levels[c] = codebook.size() == 0 ? static_cast<float>(static_cast<int>(c) - Weight::middle_code)
                                     : codebook[c];
  return levels;
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_relative_scale_values(data, sink);
  check_finite(data, "weight_codebook", sink);
  check_finite(data, "weight_correction", sink);
  const auto levels = levels_of(data);
  Tally falls;
  for (std::size_t c = 1; c < levels.size(); ++c)
    if (levels[c] < levels[c - 1]) falls.add(c);
  if (data.layer->part("weight_codebook"))
    report_tally(data, "weight_codebook", falls, Severity::warning, ErrorCode::data_implausible,
                 "levels that fall, where writers sort them", sink);
  // Scaled to the largest of few weights, even normal ones are spread flat; so they are from a
  // group's least to its greatest.
  if (data.layer->scale_group < 16 || data.layer->part("weight_correction")) return;
  const NibbleCounts counts = count_nibbles(data.part("weight"));
  std::array<CodeCount, Weight::codebook_size> codes;
  for (std::size_t c = 0; c < codes.size(); ++c) codes[c] = {levels[c], counts[c]};
  check_bell_shape(data, codes, 1.3, sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t groups = layer.scale_group == 0 ? 0 : columns / layer.scale_group;
  return rows * Weight::row_bytes(columns) + relative_scale_bytes(layer, rows, columns) +
         Weight::codebook_size * value_bytes(layer, "weight_codebook") +
         rows * groups * value_bytes(layer, "weight_correction");
}

// Split

SplitRule split(const Layer& layer) {
  if (layer.kind == LayerKind::experts) return {1, 0, "several experts in one tensor"};
  const std::uint64_t scale = layer.scale_group, rotate = layer.rotate_group;
  return {1, std::lcm(std::lcm(scale, rotate), Weight::pack_columns),
          fmt::format("ConvRot group {}, scale group {}, pack {}", rotate, scale,
                      Weight::pack_columns)};
}

// Decode: as relative_scales.h has it.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const Layer& layer = *data.layer;
  const std::uint64_t groups = layer.columns / layer.scale_group;
  const auto levels = levels_of(data);
  const Values relative(data, "weight_s_rel", DType::f8_e4m3), channel(data, "weight_s_channel");
  const Values correction(data, "weight_correction");
  const std::byte* codes = data.part("weight").data();
  for (std::uint64_t row = first_row; row < first_row + rows; ++row) {
    float* const out_row = out;
    const std::byte* code = codes + row * Weight::row_bytes(layer.columns);
    for (std::uint64_t g = 0; g < groups; ++g) {
      const float s_rel = relative[row * groups + g], s_channel = channel[row];
      const float shift = correction.size() == 0 ? 0.0f : correction[g * layer.rows + row];
      float values[Weight::codebook_size];
      for (std::size_t c = 0; c < levels.size(); ++c)
        values[c] = int8_level(levels[c], s_rel) * s_channel + shift;
      for (std::uint64_t k = g * layer.scale_group; k < (g + 1) * layer.scale_group; ++k)
        *out++ = values[nibble_low_first(code, k)];
    }
    rotate_groups({out_row, layer.columns}, layer.rotate_group);
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 0.002, .kitchen_f16 = 0.005, .kitchen_bf16 = 0.015};

}  // namespace

extern const Encoder asym_w4a8_int8_encoder;
extern const Format asym_w4a8_int8_format;
const Format asym_w4a8_int8_format = {
    .name = "asym_w4a8_int8",
    .folder = "asym_w4a8_int8",
    .summary = "rotated 4-bit codes with a codebook and scales by group, on the int8 grid",
    .weight_bits = "4.5",
    .kinds = {LayerKind::linear, LayerKind::experts},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .encoder = &asym_w4a8_int8_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
