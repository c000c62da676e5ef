// Encode: ts = ⟨absmax(W) / 2688⟩, stored as weight_scale_2; of each block of 16
// bs = e4m3(min((absmax / 6) / ts, 448)); code = e2m1(w / (ts · bs)), and 0 where ts · bs is 0.
// ⟨⟩ rounds to the arithmetic's dtype, the rest is float. Where ts would be 0 it is not rounded,
// and 1 for a weight of zeros: comfy-kitchen divides by the 0 and stores NaN.

#include "base/bytes.h"
#include "formats/common.h"
#include "formats/encoding.h"
#include "formats/nvfp4/layout.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t block = Nvfp4Weight::block;

BlockScales block_scales(const WeightShape& shape) { return {shape.rows, shape.columns / block}; }

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  return first_refusal({refuse_kind(shape, "nvfp4", {LayerKind::linear}),
                        refuse_columns(shape, block, "nvfp4's block of 16"),
                        refuse_padding(shape, Nvfp4Weight::row_padding, "nvfp4"),
                        refuse_rotation(settings, "nvfp4"),
                        refuse_scale_group(settings, "nvfp4", block)});
}

std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings&) {
  const BlockScales scales = block_scales(shape);
  return {{"weight", DType::u8, {shape.rows, Nvfp4Weight::row_bytes(shape.columns)}},
          {"weight_scale", DType::f8_e4m3, {scales.stored_rows(), scales.stored_columns()}},
          {"weight_scale_2", DType::f32, {}}};
}

std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  return MarkerText("nvfp4", settings).end(shape);
}

float tensor_scale(float absmax, DType arithmetic) {
  const float exact = absmax / 2688.0f;
  const float scale =
      with_arithmetic(arithmetic, [&](auto rounding) { return rounding.round(exact); });
  return scale != 0 ? scale : exact != 0 ? exact : 1.0f;
}

// Writes eight bytes, the even column in the high nibble.
void encode_block(std::span<const float> w, float scale, std::byte* out) {
  for (std::size_t k = 0; k < w.size(); k += 2)
    out[k / 2] =
        scale == 0
            ? std::byte{0}
            : static_cast<std::byte>(e2m1_code(w[k] / scale) << 4 | e2m1_code(w[k + 1] / scale));
}

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey& survey,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns;
  const BlockScales layout = block_scales(shape);
  const float scale = tensor_scale(survey.absmax, settings.arithmetic);
  if (first == 0) store_at(buffers.tensors[2], 0, scale);
  prepare(settings, {w, count * columns});
  for (std::uint64_t row = first; row < first + count; ++row) {
    std::byte* codes =
        buffers.tensors[0] + (row - buffers.first_row) * Nvfp4Weight::row_bytes(columns);
    for (std::uint64_t b = 0; b < layout.columns; ++b, w += block, codes += block / 2) {
      const std::span<const float> values(w, block);
      const std::uint8_t byte = e4m3_code(largest_magnitude(values) / 6.0f / scale);
      store_at(buffers.tensors[1], layout.offset(row, b), byte);
      encode_block(values, scale * e4m3_to_float(byte), codes);
    }
  }
}

}  // namespace

extern const Encoder nvfp4_encoder;
const Encoder nvfp4_encoder = {refusal, tensors, marker, survey_largest, encode};

}  // namespace parfait::formats
