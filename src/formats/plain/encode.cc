// Encode: rounded to nearest even. Holds every kind of layer and any shape.

#include "base/bytes.h"
#include "formats/encoding.h"
#include "formats/plain/layout.h"

namespace parfait::formats {
namespace {

std::string refusal(const WeightShape&, const EncodeSettings& settings) {
  return first_refusal({refuse_rotation(settings, "a plain weight"),
                        refuse_scale_group(settings, "a plain weight", 0)});
}

template <DType dtype>
std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings&) {
  return {{"weight", dtype, shape.shape}};
}

std::string marker(const WeightShape&, const EncodeSettings&) { return {}; }

template <DType dtype>
void encode(const WeightShape& shape, const EncodeSettings&, const Survey&, std::uint64_t first,
            std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t row_bytes = PlainWeight{.dtype = dtype, .columns = shape.columns}.row_bytes();
  std::byte* out = buffers.tensors[0] + (first - buffers.first_row) * row_bytes;
  const std::uint64_t values = count * shape.columns;
  for (std::uint64_t i = 0; i < values; ++i) {
    if constexpr (dtype == DType::f32) {
      store_at(out, i, w[i]);
    } else if constexpr (dtype == DType::bf16) {
      store_at(out, i, float_to_bf16(w[i]));
    } else {
      store_at(out, i, f16_code(w[i]));
    }
  }
}

template <DType dtype>
constexpr Encoder plain_encoder = {refusal, tensors<dtype>, marker, nullptr, encode<dtype>};

}  // namespace

extern const Encoder bf16_encoder, f16_encoder, f32_encoder;
const Encoder bf16_encoder = plain_encoder<DType::bf16>;
const Encoder f16_encoder = plain_encoder<DType::f16>;
const Encoder f32_encoder = plain_encoder<DType::f32>;

}  // namespace parfait::formats
