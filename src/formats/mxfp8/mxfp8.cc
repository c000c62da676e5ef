// mxfp8: 8-bit floats with a power-of-two scale for each 32 inputs. The bytes are in
// docs/formats/mxfp8.md.

#include <vector>

#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/mxfp8/layout.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t block = Mxfp8Weight::block;

BlockScales block_scales(std::uint64_t stored_rows, std::uint64_t columns) {
  return {stored_rows, columns / block};
}

// Identify

// An fp8 matrix with a matrix of scale bytes, as many as its blocks of 32 have, padded or not.
bool claims(const Evidence& evidence) {
  const TensorInfo* weight = evidence.find("weight");
  const TensorInfo* scale = evidence.find("weight_scale");
  if (!is_matrix(weight) || weight->dtype != DType::f8_e4m3 || weight->shape[1] % block != 0 ||
      !is_matrix(scale) || (scale->dtype != DType::u8 && scale->dtype != DType::f8_e8m0))
    return false;
  const BlockScales expected = block_scales(weight->shape[0], weight->shape[1]);
  const std::uint64_t count = value_count(*scale);
  return (count == expected.stored_bytes() || count == expected.rows * expected.columns) &&
         has_only(evidence, {"weight_scale", "input_scale", "scale_input"});
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer);
  settle_common(marker, {}, layer, sink);
  settle_padded_rows(layer, Mxfp8Weight::row_padding, sink);
  refuse_rotation(marker, layer, sink);
  layer.scale_group = block;
}

// Parts

std::vector<PartSpec> parts() {
  return {{"weight", {"weight"}, {DType::f8_e4m3}},
          {"weight_scale", {"weight_scale"}, {DType::f8_e8m0, DType::u8}},
          bias_part(),
          ignored_input_scale()};
}

// Check

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K]", sink)) return;
  if (check_columns(layer, block, "the scale block", sink))
    check_block_scales(layer, block_scales(layer.part("weight")->shape[0], layer.columns), sink);
  check_bias(layer, sink);
}

// A scale byte of 0 is 0 to ComfyUI and 2^-127 to OCP's text: both lose the block.
void check_lost_blocks(const LayerData& data, FindingSink& sink) {
  const std::uint64_t columns = data.layer->columns;
  const ByteSpan scales = data.part("weight_scale"), weight = data.part("weight");
  const BlockScales layout = block_scales(data.layer->part("weight")->shape[0], columns);
  Tally lost;
  for (std::uint64_t row = 0; row < data.layer->rows; ++row)
    for (std::uint64_t b = 0; b < layout.columns; ++b) {
      if (scales[layout.offset(row, b)] != std::byte{0}) continue;
      std::byte any{0};
      for (std::byte code : weight.subspan(row * columns + b * block, block)) any |= code;
      if ((any & std::byte{0x7f}) != std::byte{0}) lost.add(row * layout.columns + b);
    }
  report_tally(data, "weight_scale", lost, Severity::warning, ErrorCode::data_zero_scale,
               "zeros over blocks whose codes are not zero, counted by row and block", sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_finite(data, "weight_scale", sink, DType::f8_e8m0);
  check_lost_blocks(data, sink);
  check_finite(data, "weight", sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  const bool padded = layer.part("weight")->shape[0] != layer.rows;
  const std::uint64_t stored_rows = padded ? round_up(rows, Mxfp8Weight::row_padding) : rows;
  return stored_rows * Mxfp8Weight::row_bytes(columns) +
         block_scales(stored_rows, columns).stored_bytes();
}

// Split

SplitRule split(const Layer&) {
  return {1, Mxfp8Weight::tile_columns, "scale tiles of 128 inputs"};
}

// Decode: W = value(code) · 2^(scale byte − 127), and 0 for byte 0 as comfy-kitchen has it.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const std::uint64_t columns = data.layer->columns;
  const std::byte* code = data.part("weight").data() + first_row * columns;
  const std::span<const float, 256> values = float8_values(DType::f8_e4m3);
  const BlockScales layout = block_scales(data.layer->part("weight")->shape[0], columns);
  const Values scales(data, "weight_scale", DType::f8_e8m0);
  for (std::uint64_t row = first_row; row < first_row + rows; ++row) {
    for (std::uint64_t b = 0; b < layout.columns; ++b) {
      const float scale = scales[layout.offset(row, b)];
      for (std::uint64_t k = 0; k < block; ++k)
        *out++ = values[std::to_integer<unsigned>(*code++)] * scale;
    }
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 2e-6, .kitchen_f16 = 1e-3, .kitchen_bf16 = 7e-3};

}  // namespace

extern const Encoder mxfp8_encoder;
extern const Format mxfp8_format;
const Format mxfp8_format = {
    .name = "mxfp8",
    .folder = "mxfp8",
    .summary = "8-bit floats with a power-of-two scale for each 32 inputs",
    .weight_bits = "8.25",
    .kinds = {LayerKind::linear},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .encoder = &mxfp8_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
