// Encode: r = the weight, rotated; scale = ⟨max(absmax(r), 1e-10) / 7⟩ of each row;
// code = clamp(rne(⟨r / scale⟩), -7, 7), where ⟨⟩ rounds to the arithmetic's dtype. In f16 the
// scale of a row below 2^-22 is 0, and so are its codes.

#include "base/bytes.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/encoding.h"

namespace parfait::formats {
namespace {

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  if (settings.rotate_group == 0) return "convrot_w4a4 is always rotated and has no ConvRot group";
  return first_refusal(
      {refuse_kind(shape, "convrot_w4a4", {LayerKind::linear}),
       refuse_columns(shape, Int4Weight::pack_columns, "convrot_w4a4's packing of 64"),
       refuse_group(shape, settings.rotate_group),
       refuse_scale_group(settings, "convrot_w4a4", 0)});
}

std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings&) {
  return {{"weight", DType::i8, {shape.rows, Int4Weight::row_bytes(shape.columns)}},
          {"weight_scale", DType::f32, {shape.rows}}};
}

std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  MarkerText text("convrot_w4a4", settings);
  text.number("convrot_groupsize", settings.rotate_group);
  if (settings.activation == Activation::int8) text.text("linear_dtype", "int8");
  return text.end(shape);
}

template <class Arithmetic>
void encode_row(std::span<const float> row, float scale, std::byte* out) {
  for (std::size_t k = 0; k < row.size(); k += 2) {
    const int even = to_code(Arithmetic::round(row[k] / scale), -7, 7);
    const int odd = to_code(Arithmetic::round(row[k + 1] / scale), -7, 7);
    out[k / 2] = static_cast<std::byte>((even & 15) | odd << 4);
  }
}

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey&,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns, row_bytes = Int4Weight::row_bytes(columns);
  prepare(settings, {w, count * columns});
  std::byte* codes = buffers.tensors[0] + (first - buffers.first_row) * row_bytes;
  with_arithmetic(settings.arithmetic, [&](auto arithmetic) {
    const float least = arithmetic.round(1e-10f);
    for (std::uint64_t i = 0; i < count; ++i, codes += row_bytes) {
      const std::span<const float> row(w + i * columns, columns);
      const float scale = arithmetic.round(std::max(largest_magnitude(row), least) / 7.0f);
      store_at(buffers.tensors[1], first + i, scale);
      if (scale == 0) {
        std::fill_n(codes, row_bytes, std::byte{0});
      } else {
        encode_row<decltype(arithmetic)>(row, scale, codes);
      }
    }
  });
}

}  // namespace

extern const Encoder convrot_w4a4_encoder;
const Encoder convrot_w4a4_encoder = {refusal, tensors, marker, nullptr, encode};

}  // namespace parfait::formats
