// nvfp4: 4-bit floats with a scale for each 16 inputs and one for the tensor. The bytes are in
// docs/formats/nvfp4.md.

#include <array>
#include <vector>

#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/nvfp4/layout.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t block = Nvfp4Weight::block;

// Identify

// Bytes with 8-bit block scales and a second scale of one value: no other format has the three.
bool claims(const Evidence& evidence) {
  const TensorInfo* weight = evidence.find("weight");
  const TensorInfo* blocks = evidence.find("weight_scale");
  const TensorInfo* scale = evidence.find("weight_scale_2");
  return is_matrix(weight) && weight->dtype == DType::u8 && is_matrix(blocks) &&
         (blocks->dtype == DType::f8_e4m3 || blocks->dtype == DType::u8) && scale &&
         scale->dtype == DType::f32 && value_count(*scale) == 1 &&
         has_only(evidence, {"weight_scale", "weight_scale_2", "input_scale", "pre_quant_scale"});
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer, {.weights = 2, .bytes = 1});
  settle_common(marker, {}, layer, sink);
  settle_padded_rows(layer, Nvfp4Weight::row_padding, sink);
  refuse_rotation(marker, layer, sink);
  layer.scale_group = block;
}

// Parts

std::vector<PartSpec> parts() {
  return {{"weight", {"weight"}, {DType::u8}},
          {"weight_scale", {"weight_scale"}, {DType::f8_e4m3, DType::u8}},
          float_part("weight_scale_2", {"weight_scale_2"}, PartSpec::Need::required),
          float_part("input_scale", {"input_scale"}, PartSpec::Need::optional),
          {"pre_quant_scale",
           {"pre_quant_scale"},
           {DType::bf16, DType::f16, DType::f32},
           PartSpec::Need::optional},
          bias_part()};
}

// Check

BlockScales block_scales(std::uint64_t stored_rows, std::uint64_t columns) {
  return {stored_rows, columns / block};
}

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K/2]", sink)) return;
  if (check_columns(layer, block, "the scale block", sink))
    check_block_scales(layer, block_scales(layer.part("weight")->shape[0], layer.columns), sink);
  check_single(layer, "weight_scale_2", sink);
  check_single(layer, "input_scale", sink);
  check_shape(layer, "pre_quant_scale", {layer.columns}, sink);
  check_bias(layer, sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  // A block scale may be 0 over any codes: a writer's rounding of a tiny block.
  check_scale_values(data, "weight_scale", Zeros::allowed, sink, DType::f8_e4m3);
  check_scale_values(data, "weight_scale_2", Zeros::allowed, sink);
  check_zero_scaled_rows(data, "weight_scale_2", Nvfp4Weight::row_bytes(data.layer->columns), sink);
  check_scale_values(data, "input_scale", Zeros::refused, sink);
  check_finite(data, "pre_quant_scale", sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const bool padded = layer.part("weight")->shape[0] != layer.rows;
  const std::uint64_t stored_rows = padded ? round_up(rows, Nvfp4Weight::row_padding) : rows;
  return stored_rows * Nvfp4Weight::row_bytes(columns) +
         block_scales(stored_rows, columns).stored_bytes() + value_bytes(layer, "weight_scale_2") +
         value_bytes(layer, "input_scale") + columns * value_bytes(layer, "pre_quant_scale");
}

// Split

SplitRule split(const Layer&) { return {1, Nvfp4Weight::tile_columns, "scale tiles of 64 inputs"}; }

// Decode: W = value(code) · (block scale · scale). pre_quant_scale is the activation's, not W's.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  static const auto values = [] {
    std::array<float, 16> table;
    for (unsigned code = 0; code < 16; ++code)
      table[code] = e2m1_to_float(static_cast<std::uint8_t>(code));
    return table;
  }();
  const std::uint64_t columns = data.layer->columns;
  const std::byte* codes = data.part("weight").data();
  const BlockScales layout = block_scales(data.layer->part("weight")->shape[0], columns);
  const Values block_values(data, "weight_scale", DType::f8_e4m3);
  const float scale = Values(data, "weight_scale_2")[0];
  for (std::uint64_t row = first_row; row < first_row + rows; ++row) {
    const std::byte* code = codes + row * Nvfp4Weight::row_bytes(columns);
    for (std::uint64_t b = 0; b < columns / block; ++b) {
      const float total = scale * block_values[layout.offset(row, b)];
      for (std::uint64_t k = b * block; k < (b + 1) * block; ++k)
        *out++ = values[nibble_high_first(code, k)] * total;
    }
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 2e-6, .kitchen_f16 = 1e-3, .kitchen_bf16 = 7e-3};

}  // namespace

extern const Encoder nvfp4_encoder;
extern const Format nvfp4_format;
const Format nvfp4_format = {
    .name = "nvfp4",
    .folder = "nvfp4",
    .summary = "4-bit floats with a scale for each 16 inputs and one for the tensor",
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
    .encoder = &nvfp4_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
