// Encode: a format's sixth question. Rows of floats in, the bytes of a layer's tensors out.
//
// An encoder sees one layer at a time. Its tensors are known from its shape and settings alone, so
// a header can be written before a weight is read. Some formats need to see the whole weight first
// (one scale or one codebook for all of it): survey() does that, and its answer goes into every
// call of encode(). encode() may be called for any ranges of rows on any threads at once; the bytes
// do not depend on the ranges, the threads or the machine.
//
// The plain path is comfy-kitchen's eager encoder. Arithmetic f32 is what it makes of the weight
// widened to float32 first; f16 and bf16 are what it makes of a weight of that dtype, with every
// rounding to it (values that are not of the dtype are rounded first).
//
// Values must be finite. The caller looks at what it reads (all_finite) and refuses a weight with
// NaN or infinities: no format holds them, and one would spoil the scale of its whole row, group or
// tensor. Of such rows encode() makes bytes without meaning, within its buffers; a survey's absmax
// is then not finite. In f16 arithmetic a rotation of magnitudes above some thousands can overflow,
// as comfy-kitchen's does: the row's scale is then infinite, which a deep check of the result
// finds.
#ifndef PARFAIT_FORMATS_ENCODE_H_
#define PARFAIT_FORMATS_ENCODE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/dtype.h"
#include "parfait/error.h"

namespace parfait::formats {

enum class ScaleOf { row, tensor };

struct EncodeSettings {
  std::uint32_t rotate_group = 0;        // ConvRot group; 0: not rotated
  std::uint32_t scale_group = 0;         // of formats with a choice of it; 0: the format's default
  ScaleOf scale_of = ScaleOf::row;       // int8_tensorwise only
  std::optional<Activation> activation;  // convrot_w4a4's linear_dtype; empty: not declared
  bool full_precision = false;           // full_precision_matrix_mult, where it is to be declared
  DType arithmetic = DType::f32;         // f32, f16, bf16: see above
};

// A weight: experts are rows of one another, convolutions are rows by all the rest.
struct WeightShape {
  LayerKind kind = LayerKind::linear;
  std::vector<std::uint64_t> shape;  // as the source's tensor has it: [N, K], [E, N, K], [V, K]
  std::uint64_t rows = 0, columns = 0;
};

// A tensor that an encoder writes: <layer>.<suffix>. The first is always the weight; the others are
// small. Bias and marker are the caller's.
struct EncodedTensor {
  std::string_view suffix;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

// What encode() needs to know of the whole weight.
struct Survey {
  float absmax = 0;                               // of all values, rotated where the format does
  std::optional<std::array<float, 16>> codebook;  // asym_w4a8_int8
};

// Gives rows [first, first + count) of the weight as floats in the original basis.
using RowReader = std::function<Result<Done>(std::uint64_t first, std::uint64_t count, float* out)>;

// Where the bytes go. The weight's buffer holds rows from first_row on; all others are whole
// tensors, zeroed before the first call.
struct EncodeBuffers {
  std::uint64_t first_row = 0;
  std::vector<std::byte*> tensors;  // in the order of tensors()
};

// Whether none of the values is NaN or infinite.
bool all_finite(std::span<const float> values);

struct Encoder {
  // Why this format cannot hold such a weight under these settings, as the end of a sentence ("K =
  // 320 is not a multiple of the ConvRot group 256"); empty where it can.
  std::string (*refusal)(const WeightShape&, const EncodeSettings&) = nullptr;
  std::vector<EncodedTensor> (*tensors)(const WeightShape&, const EncodeSettings&) = nullptr;
  // The marker's JSON, byte for byte as ComfyUI's own saver writes it; empty for plain formats.
  std::string (*marker)(const WeightShape&, const EncodeSettings&) = nullptr;
  // Null where rows can be encoded without having seen the others.
  Result<Survey> (*survey)(const WeightShape&, const EncodeSettings&, const RowReader&) = nullptr;
  // Encodes rows [first, first + count), which w holds; w may be overwritten.
  void (*encode)(const WeightShape&, const EncodeSettings&, const Survey&, std::uint64_t first,
                 std::uint64_t count, float* w, const EncodeBuffers&) = nullptr;
};

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_ENCODE_H_
