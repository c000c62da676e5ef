// Encode: scale = ⟨absmax(W) / largest⟩, with 448 or 57344 for the largest value of the type;
// code = fp8(clamp(⟨w · ⟨1 / scale⟩⟩, ±largest)), where ⟨⟩ rounds to the arithmetic's dtype.
// Where ⟨1 / scale⟩ is not finite (in f16 below an absmax of 448 / 65504, always below 2^-119),
// comfy-kitchen stores NaN or saturated codes; here scale is not rounded, and w divided by it. The
// scale of a weight of zeros is 1.

#include <cmath>

#include "base/bytes.h"
#include "formats/encoding.h"
#include "formats/float8/layout.h"

namespace parfait::formats {
namespace {

struct E4m3 {
  static constexpr std::string_view name = "float8_e4m3fn";
  static constexpr DType dtype = DType::f8_e4m3;
  static constexpr float largest = 448.0f;
  static std::uint8_t code(float value) { return e4m3_code(value); }
};
struct E5m2 {
  static constexpr std::string_view name = "float8_e5m2";
  static constexpr DType dtype = DType::f8_e5m2;
  static constexpr float largest = 57344.0f;
  static std::uint8_t code(float value) { return e5m2_code(value); }
};

template <class Type>
std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  return first_refusal({refuse_kind(shape, Type::name, {LayerKind::linear, LayerKind::embedding}),
                        refuse_rotation(settings, Type::name),
                        refuse_scale_group(settings, Type::name, 0)});
}

template <class Type>
std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings&) {
  return {{"weight", Type::dtype, shape.shape}, {"weight_scale", DType::f32, {}}};
}

template <class Type>
std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  return MarkerText(Type::name, settings).end(shape);
}

// By what values are multiplied, or divided where no such number is finite.
struct Scale {
  float stored = 1, inverse = 0;
};

template <class Type, class Arithmetic>
Scale scale_for(float absmax) {
  const float exact = absmax / Type::largest, rounded = Arithmetic::round(exact);
  const float inverse = Arithmetic::round(1.0f / rounded);
  if (std::isfinite(inverse)) return {rounded, inverse};
  return {exact == 0 ? 1.0f : exact, 0};
}

template <class Type, class Arithmetic>
void encode_values(std::span<const float> values, const Scale& scale, std::byte* out) {
  if (scale.inverse == 0) {
    for (std::size_t i = 0; i < values.size(); ++i)
      out[i] = static_cast<std::byte>(Type::code(values[i] / scale.stored));
  } else {
    for (std::size_t i = 0; i < values.size(); ++i)
      out[i] = static_cast<std::byte>(Type::code(Arithmetic::round(values[i] * scale.inverse)));
  }
}

template <class Type>
void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey& survey,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::span<float> values(w, count * shape.columns);
  prepare(settings, values);
  std::byte* codes =
      buffers.tensors[0] + (first - buffers.first_row) * Float8Weight::row_bytes(shape.columns);
  with_arithmetic(settings.arithmetic, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    const Scale scale = scale_for<Type, Arithmetic>(survey.absmax);
    if (first == 0) store_at(buffers.tensors[1], 0, scale.stored);
    encode_values<Type, Arithmetic>(values, scale, codes);
  });
}

template <class Type>
constexpr Encoder float8_encoder = {refusal<Type>, tensors<Type>, marker<Type>, survey_largest,
                                    encode<Type>};

}  // namespace

extern const Encoder float8_e4m3fn_encoder, float8_e5m2_encoder;
const Encoder float8_e4m3fn_encoder = float8_encoder<E4m3>;
const Encoder float8_e5m2_encoder = float8_encoder<E5m2>;

}  // namespace parfait::formats
