// convrot_w4a4: rotated weights as packed signed 4-bit codes with a scale for each row. The bytes
// are in docs/formats/convrot_w4a4.md.

#include <fmt/format.h>

#include <numeric>
#include <vector>

#include "base/hadamard.h"
#include "formats/common.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/data_checks.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t pack = Int4Weight::pack_columns;

// Identify

bool claims(const Evidence&) { return false; }  // int8_tensorwise has the same tensors

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer, {.weights = 2, .bytes = 1});
  settle_common(marker, {.convrot = true, .quant_group_size = true, .linear_dtype = true}, layer,
                sink);
  settle_rotation(marker, Rotates::always, layer, sink);
  layer.activation = Activation::int4;  // ComfyUI's default
  layer.activation_declared = marker && marker->linear_dtype.has_value();
  if (marker && marker->quant_group_size &&
      static_cast<std::uint64_t>(*marker->quant_group_size) != pack)
    sink.add(
        Severity::error, ErrorCode::marker_key, "",
        fmt::format("quant_group_size {}", *marker->quant_group_size), "64, or no such key",
        "this format has scales by row and one packing; ComfyUI takes 64 whatever the key says");
  if (!marker || !marker->linear_dtype || *marker->linear_dtype == "int4") return;
  layer.activation = Activation::int8;
  if (*marker->linear_dtype != "int8")
    sink.add(Severity::error, ErrorCode::marker_key, "",
             fmt::format("linear_dtype {}", *marker->linear_dtype), "int4 or int8",
             "the marker asks for an input width that no reader knows");
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
  if (!check_matrix(layer, "[N, K/2]", sink)) return;
  check_row_scales(layer, "weight_scale", RowScales::each, sink);
  check_rotation(layer, sink);
  check_columns(layer, pack, "the packing", sink);
  check_bias(layer, sink);
}

// Where the code -8 first stands, counted in weights.
std::uint64_t first_lowest_code(ByteSpan codes) {
  std::uint64_t i = 0;
  while (int4_code(codes.data(), i) != -8) ++i;
  return i;
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_scale_values(data, "weight_scale", Zeros::allowed, sink);
  check_zero_scaled_rows(data, "weight_scale", Int4Weight::row_bytes(data.layer->columns), sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
  const ByteSpan weight = data.part("weight");
  const NibbleCounts counts = count_nibbles(weight);
  if (const std::uint64_t lowest = counts[8]; lowest > 0)
    report_tally(data, "weight", {lowest, first_lowest_code(weight)}, Severity::warning,
                 ErrorCode::data_code_range, "codes of -8, where writers stop at -7", sink);
  std::vector<CodeCount> codes;
  for (int nibble = 0; nibble < 16; ++nibble)
    codes.push_back({static_cast<float>((nibble ^ 8) - 8), counts[static_cast<unsigned>(nibble)]});
  check_bell_shape(data, codes, 1.5, sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  return rows * (Int4Weight::row_bytes(columns) + value_bytes(layer, "weight_scale"));
}

// Split

SplitRule split(const Layer& layer) {
  const std::uint64_t group = layer.rotate_group;
  return {1, std::lcm(group, pack), fmt::format("ConvRot group {}, pack {}", group, pack)};
}

// Decode: W = q · s, then rotated back by the same matrix.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const std::uint64_t columns = data.layer->columns;
  const std::byte* codes = data.part("weight").data();
  const Values scales(data, "weight_scale");
  for (std::uint64_t row = first_row; row < first_row + rows; ++row, out += columns) {
    const std::byte* code = codes + row * Int4Weight::row_bytes(columns);
    const float scale = scales.of_row(row);
    for (std::uint64_t k = 0; k < columns; ++k)
      out[k] = static_cast<float>(int4_code(code, k)) * scale;
    rotate_groups({out, columns}, data.layer->rotate_group);
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured. The 4 bits of the activation are most of it.

constexpr Tolerance tolerance{
    .relative_l2 = 0.2, .kitchen_f32 = 5e-3, .kitchen_f16 = 0.02, .kitchen_bf16 = 0.055};

}  // namespace

extern const Encoder convrot_w4a4_encoder;
extern const Format convrot_w4a4_format;
const Format convrot_w4a4_format = {
    .name = "convrot_w4a4",
    .folder = "convrot_w4a4",
    .summary = "rotated 4-bit codes with a scale for each row, inputs in 4 or 8 bits",
    .weight_bits = "4",
    .kinds = {LayerKind::linear},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .encoder = &convrot_w4a4_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
