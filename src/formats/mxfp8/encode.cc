// Encode: of each block of 32, e = ceil(log2(max(absmax / 448, 2^-127))) + 127, at most 254, and 0
// for a block of zeros; code = e4m3(w / 2^(e - 127)). log2 is rounded to float, as in
// comfy-kitchen, so that a maximum by a few last bits above 448 · 2^n does not raise e. A tiny
// block of others has e = 1 at least: comfy-kitchen's 0 means a scale of 0, by which it divides.

#include <cmath>

#include "base/bytes.h"
#include "formats/common.h"
#include "formats/encoding.h"
#include "formats/mxfp8/layout.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t block = Mxfp8Weight::block;

BlockScales block_scales(const WeightShape& shape) { return {shape.rows, shape.columns / block}; }

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  return first_refusal({refuse_kind(shape, "mxfp8", {LayerKind::linear}),
                        refuse_columns(shape, block, "mxfp8's block of 32"),
                        refuse_padding(shape, Mxfp8Weight::row_padding, "mxfp8"),
                        refuse_rotation(settings, "mxfp8"),
                        refuse_scale_group(settings, "mxfp8", block)});
}

// The scales are bytes for other tools' sake: SGLang takes no others.
std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings&) {
  const BlockScales scales = block_scales(shape);
  return {{"weight", DType::f8_e4m3, {shape.rows, Mxfp8Weight::row_bytes(shape.columns)}},
          {"weight_scale", DType::u8, {scales.stored_rows(), scales.stored_columns()}}};
}

std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  return MarkerText("mxfp8", settings).end(shape);
}

// The scale byte for values up to absmax, which is not 0.
std::uint8_t scale_byte(float absmax) {
  const auto bits = std::bit_cast<std::uint32_t>(absmax / 448.0f);
  if (bits >> 23 == 0) return 1;
  const int exponent = static_cast<int>(bits >> 23) - 127;
  const std::uint32_t mantissa = bits & 0x7fffffu;
  // log2(1 + m) is m / ln 2 as far as it matters, which is where the sum is rounded to `exponent`.
  const float log2 = static_cast<float>(exponent + mantissa * (0x1p-23 * 1.4426950408889634));
  return static_cast<std::uint8_t>(exponent + (log2 > static_cast<float>(exponent)) + 127);
}

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey&,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns;
  const BlockScales layout = block_scales(shape);
  prepare(settings, {w, count * columns});
  for (std::uint64_t row = first; row < first + count; ++row) {
    std::byte* codes =
        buffers.tensors[0] + (row - buffers.first_row) * Mxfp8Weight::row_bytes(columns);
    for (std::uint64_t b = 0; b < layout.columns; ++b, w += block, codes += block) {
      const float absmax = largest_magnitude({w, block});
      const std::uint8_t byte = absmax == 0 ? 0 : scale_byte(absmax);
      store_at(buffers.tensors[1], layout.offset(row, b), byte);
      const float scale = absmax == 0 ? 1.0f : e8m0_to_float(byte);
      // comfy-kitchen's zeros lose their sign.
      for (std::uint64_t k = 0; k < block; ++k)
        codes[k] = absmax == 0 ? std::byte{0} : static_cast<std::byte>(e4m3_code(w[k] / scale));
    }
  }
}

}  // namespace

extern const Encoder mxfp8_encoder;
const Encoder mxfp8_encoder = {refusal, tensors, marker, nullptr, encode};

}  // namespace parfait::formats
