// F32, F16 and BF16 weights as they are. The bytes are in docs/formats/plain.md.

#include <vector>

#include "base/floats.h"
#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/plain/layout.h"

namespace parfait::formats {
namespace {

// Identify

// A matrix with nothing beside it but its bias. Vectors and convolutions are no layers of this
// kind.
template <DType dtype>
bool claims(const Evidence& evidence) {
  const TensorInfo* weight = evidence.find("weight");
  return is_matrix(weight) && weight->dtype == dtype && has_only(evidence, {});
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer);
  settle_common(marker, {}, layer, sink);
}

// Parts

std::vector<PartSpec> parts(DType dtype) { return {{"weight", {"weight"}, {dtype}}, bias_part()}; }

// Check

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, K]", sink)) return;
  check_bias(layer, sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_finite(data, "weight", sink);
  check_not_all_zero(data, sink);
  check_finite(data, "bias", sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  return rows * columns * value_bytes(layer, "weight");
}

// Split

SplitRule split(const Layer&) { return {1, 1, "no groups of inputs"}; }

// Decode: exact.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const std::uint64_t columns = data.layer->columns;
  const DType dtype = data.layer->part("weight")->dtype;
  const std::uint64_t row_bytes = columns * (dtype_bits(dtype) / 8);
  widen(dtype, data.part("weight").data() + first_row * row_bytes, rows * columns, out);
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 2e-6, .kitchen_f16 = 1e-3, .kitchen_bf16 = 7e-3};

Format plain(std::string_view name, std::string_view summary, std::string_view bits, DType dtype,
             bool (*claims_it)(const Evidence&), const Encoder& encoder) {
  return {
      .name = name,
      .folder = "plain",
      .summary = summary,
      .weight_bits = bits,
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

extern const Encoder bf16_encoder, f16_encoder, f32_encoder;
extern const Format bf16_format, f16_format, f32_format;
const Format bf16_format = plain("bf16", "bfloat16 weights as they are", "16", DType::bf16,
                                 claims<DType::bf16>, bf16_encoder);
const Format f16_format = plain("f16", "half-precision weights as they are", "16", DType::f16,
                                claims<DType::f16>, f16_encoder);
const Format f32_format = plain("f32", "single-precision weights as they are", "32", DType::f32,
                                claims<DType::f32>, f32_encoder);

}  // namespace parfait::formats
