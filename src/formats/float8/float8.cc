// float8_e4m3fn and float8_e5m2: 8-bit floats with one scale for the tensor. The bytes are in
// docs/formats/float8.md.

#include <fmt/format.h>

#include <vector>

#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/float8/layout.h"

namespace parfait::formats {
namespace {

// Identify

bool is_float(const TensorInfo& tensor) {
  return tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
}

// An fp8 matrix with a float scale, of whatever shape: check() says which dialect the wrong ones
// are. Scales of bytes are mxfp8's.
template <DType dtype>
bool claims(const Evidence& evidence) {
  const TensorInfo* weight = evidence.find("weight");
  const TensorInfo* scale = evidence.find("weight_scale");
  if (!scale) scale = evidence.find("scale_weight");
  return is_matrix(weight) && weight->dtype == dtype && scale && is_float(*scale) &&
         has_only(evidence, {"weight_scale", "scale_weight", "input_scale", "scale_input"});
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer);
  settle_common(marker, {}, layer, sink);
  refuse_rotation(marker, layer, sink);
  const TensorInfo* weight = layer.part("weight");
  if (weight && weight->dtype == DType::u8)
    sink.add(Severity::error, ErrorCode::part_dtype, weight->name, tensor_text(*weight),
             layer.format->name == "float8_e5m2" ? "F8_E5M2" : "F8_E4M3",
             "tools disagree about fp8 codes stored as U8: ComfyUI converts each byte as a number, "
             "others take it as the code; store the tensor as fp8");
}

// Parts

std::vector<PartSpec> parts(DType dtype) {
  return {{"weight", {"weight"}, {dtype}},
          float_part("weight_scale", {"weight_scale", "scale_weight"}, PartSpec::Need::optional),
          float_part("input_scale", {"input_scale", "scale_input"}, PartSpec::Need::optional),
          bias_part()};
}

// Check

// Scales by row or block, which converters of another project write. True if it has said so.
bool report_dialect(const Layer& layer, FindingSink& sink) {
  const TensorInfo* scale = layer.part("weight_scale");
  if (!scale || scale->bytes == 0 || value_count(*scale) == 1) return false;
  const bool by_row = value_count(*scale) == layer.rows;
  sink.add(Severity::error, ErrorCode::part_shape, scale->name, tensor_text(*scale), "one value",
           fmt::format("{} scales ({}), which ComfyUI's core does not load either; convert the "
                       "layer to a tensor-wise scale or to mxfp8",
                       by_row ? "row-wise" : "block-wise",
                       by_row ? "one for each of the rows" : "neither one value nor one a row"));
  return true;
}

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K]", sink)) return;
  if (!report_dialect(layer, sink)) check_single(layer, "weight_scale", sink);
  check_single(layer, "input_scale", sink);
  check_bias(layer, sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_scale_values(data, "weight_scale", Zeros::allowed, sink);
  check_zero_scaled_rows(data, "weight_scale", Float8Weight::row_bytes(data.layer->columns), sink);
  check_scale_values(data, "input_scale", Zeros::refused, sink);
  check_finite(data, "weight", sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  return rows * Float8Weight::row_bytes(columns) + value_bytes(layer, "weight_scale") +
         value_bytes(layer, "input_scale");
}

// Split

SplitRule split(const Layer&) { return {1, 1, "no groups of inputs"}; }

// Decode: W = value(code) · scale.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const std::uint64_t columns = data.layer->columns;
  const std::byte* codes = data.part("weight").data() + first_row * columns;
  const std::span<const float, 256> values = float8_values(data.layer->part("weight")->dtype);
  const Values scales(data, "weight_scale");
  const float scale = scales.size() == 0 ? 1.0f : scales[0];
  for (std::uint64_t i = 0; i < rows * columns; ++i)
    out[i] = values[std::to_integer<unsigned>(codes[i])] * scale;
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 2e-6, .kitchen_f16 = 1e-3, .kitchen_bf16 = 7e-3};

Format float8(std::string_view name, std::string_view summary, DType dtype,
              bool (*claims_it)(const Evidence&), const Encoder& encoder) {
  return {
      .name = name,
      .folder = "float8",
      .summary = summary,
      .weight_bits = "8",
      .kinds = {LayerKind::linear, LayerKind::embedding},
      .claims = claims_it,
      .settle = settle,
      .parts = parts(dtype),
      .check = check,
      .check_data = check_data,
      .size = size,
      .split = split,
      .decode = decode,
      .encoder = &encoder,
      .tolerance = tolerance,
  };
}

}  // namespace

extern const Encoder float8_e4m3fn_encoder, float8_e5m2_encoder;
extern const Format float8_e4m3fn_format, float8_e5m2_format;
const Format float8_e4m3fn_format =
    float8("float8_e4m3fn", "8-bit floats (4 exponent bits) with one scale for the tensor",
           DType::f8_e4m3, claims<DType::f8_e4m3>, float8_e4m3fn_encoder);
const Format float8_e5m2_format =
    float8("float8_e5m2", "8-bit floats (5 exponent bits) with one scale for the tensor",
           DType::f8_e5m2, claims<DType::f8_e5m2>, float8_e5m2_encoder);

}  // namespace parfait::formats
