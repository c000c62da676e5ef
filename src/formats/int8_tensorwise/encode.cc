// Encode: r = the weight, rotated where asked; scale = max(absmax(r) / 127, 1e-30) of each row or
// of all; code = clamp(rne(⟨r / ⟨scale⟩⟩), -128, 127), where ⟨⟩ rounds to the arithmetic's dtype.
// The scale itself is stored as float, not rounded.

#include "base/bytes.h"
#include "formats/encoding.h"
#include "formats/int8_tensorwise/layout.h"

namespace parfait::formats {
namespace {

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  if (shape.kind == LayerKind::convolution)
    return "int8_tensorwise convolutions are not written: ComfyUI reads none";
  return first_refusal(
      {refuse_kind(shape, "int8_tensorwise",
                   {LayerKind::linear, LayerKind::embedding, LayerKind::experts}),
       settings.rotate_group == 0 ? "" : refuse_group(shape, settings.rotate_group),
       refuse_scale_group(settings, "int8_tensorwise", 0)});
}

std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings& settings) {
  std::vector<std::uint64_t> scale_shape;  // [N, 1], [E, N, 1]; [] of the whole tensor
  if (settings.scale_of == ScaleOf::row) {
    scale_shape = shape.shape;
    scale_shape.back() = 1;
  }
  return {{"weight", DType::i8, shape.shape}, {"weight_scale", DType::f32, scale_shape}};
}

std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  MarkerText text("int8_tensorwise", settings);
  if (settings.rotate_group != 0)
    text.flag("convrot").number("convrot_groupsize", settings.rotate_group);
  return text.end(shape);
}

Result<Survey> survey(const WeightShape& shape, const EncodeSettings& settings,
                      const RowReader& reader) {
  if (settings.scale_of == ScaleOf::row) return Survey{};
  return survey_largest(shape, settings, reader);
}

float scale_for(float absmax) { return std::max(absmax / 127.0f, 1e-30f); }

template <class Arithmetic>
void encode_row(std::span<const float> row, float scale, std::byte* out) {
  float divisor = Arithmetic::round(scale);
  if (divisor == 0) divisor = Arithmetic::smallest_normal;
  for (std::size_t k = 0; k < row.size(); ++k)
    out[k] = static_cast<std::byte>(to_code(Arithmetic::round(row[k] / divisor), -128, 127));
}

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey& survey,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns;
  prepare(settings, {w, count * columns});
  std::byte* codes = buffers.tensors[0] + (first - buffers.first_row) * columns;
  const bool by_row = settings.scale_of == ScaleOf::row;
  float scale = scale_for(survey.absmax);
  if (!by_row && first == 0) store_at(buffers.tensors[1], 0, scale);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::span<const float> row(w + i * columns, columns);
    if (by_row) {
      scale = scale_for(largest_magnitude(row));
      store_at(buffers.tensors[1], first + i, scale);
    }
    with_arithmetic(settings.arithmetic, [&](auto arithmetic) {
      encode_row<decltype(arithmetic)>(row, scale, codes + i * columns);
    });
  }
}

}  // namespace

extern const Encoder int8_tensorwise_encoder;
const Encoder int8_tensorwise_encoder = {refusal, tensors, marker, survey, encode};

}  // namespace parfait::formats
