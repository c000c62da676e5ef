// What encoders share: the roundings of an arithmetic, rotation, largest values, codes, refusals
// and markers. encode.h has the interface.
//
// Nothing here is kept between calls; any thread may call anything.
#ifndef PARFAIT_FORMATS_ENCODING_H_
#define PARFAIT_FORMATS_ENCODING_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "base/floats.h"
#include "formats/encode.h"

namespace parfait::formats {

// --- Arithmetic: every result rounded to a dtype ---

// As round_to_f16, without branches, so that loops over it are vectors.
inline float round_to_f16_fast(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits & 0x80000000u, magnitude = bits ^ sign;
  const std::uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1u)) & ~0x1fffu;
  // Subnormals are multiples of 2^-24, which is the last bit of 0.75.
  const float sum = (std::bit_cast<float>(magnitude) + 0.75f) - 0.75f;
  std::uint32_t rounded = magnitude < 0x38800000u ? std::bit_cast<std::uint32_t>(sum) : normal;
  rounded = rounded >= 0x47800000u ? 0x7f800000u : rounded;
  rounded = magnitude > 0x7f800000u ? magnitude : rounded;
  return std::bit_cast<float>(rounded | sign);
}

// As float_to_f16, without branches.
inline std::uint16_t f16_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(round_to_f16_fast(value));
  const std::uint32_t sign = bits >> 31, magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal = std::min((magnitude >> 13) - (112u << 10), 0x7c00u);
  // A sum with 0.5, whose last bit is the smallest subnormal, counts these.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  std::uint32_t code = magnitude < 0x38800000u ? subnormal : normal;
  code = magnitude > 0x7f800000u ? 0x7e00u | (magnitude >> 13 & 0x1ffu) : code;
  return static_cast<std::uint16_t>(code | sign << 15);
}

struct F32 {
  static constexpr float smallest_normal = 0x1p-126f;
  static float round(float value) { return value; }
};
struct F16 {
  static constexpr float smallest_normal = 0x1p-14f;
  static float round(float value) { return round_to_f16_fast(value); }
};
struct Bf16 {
  static constexpr float smallest_normal = 0x1p-126f;
  static float round(float value) { return round_to_bf16(value); }
};

// Calls f with F32, F16 or Bf16.
template <class F>
auto with_arithmetic(DType arithmetic, F&& f) {
  if (arithmetic == DType::bf16) return f(Bf16{});
  if (arithmetic == DType::f16) return f(F16{});
  return f(F32{});
}

// --- Values ---

// In place: rounded to the arithmetic's dtype; where the settings rotate, rotated (sums in float)
// and rounded again. This is the weight that formats encode.
void prepare(const EncodeSettings& settings, std::span<float> values);

// The largest absolute value; not finite where some value is not.
inline float largest_magnitude(std::span<const float> values) {
  std::uint32_t largest = 0;  // bits of magnitudes have the order of the magnitudes
  for (float value : values)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(value) & 0x7fffffffu);
  return std::bit_cast<float>(largest);
}

// A survey of nothing but the largest magnitude of the prepared weight.
Result<Survey> survey_largest(const WeightShape& shape, const EncodeSettings& settings,
                              const RowReader& reader);

// rne(value), clamped to integers low and high (both below 2^22). NaN gives low.
inline int to_code(float value, float low, float high) {
  const float clamped = std::min(std::max(low, value), high);
  constexpr float to_integer = 0x1.8p23f;  // a sum with it has the integer in its last bits
  return static_cast<int>(std::bit_cast<std::uint32_t>(clamped + to_integer) -
                          std::bit_cast<std::uint32_t>(to_integer));
}

// The code of a small float: nearest, ties to even, saturating at `largest`; the sign of zero is
// kept. As the functions of base/floats.h for all but NaN, without branches.
template <int mantissa_bits, int bias, unsigned largest, int sign_shift>
inline std::uint8_t small_float_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 31, magnitude = bits & 0x7fffffffu;
  constexpr int shift = 23 - mantissa_bits;
  constexpr std::uint32_t rebias = static_cast<std::uint32_t>(127 - bias) << mantissa_bits;
  const std::uint32_t normal =
      ((magnitude + ((1u << (shift - 1)) - 1) + ((magnitude >> shift) & 1u)) >> shift) - rebias;
  // A float whose last bit is worth the smallest subnormal, 2^(1 - bias - mantissa_bits).
  constexpr auto aligner =
      static_cast<std::uint32_t>(127 + 24 - bias - mantissa_bits) << 23 | 1u << 22;
  const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) +
                                                               std::bit_cast<float>(aligner)) -
                                  aligner;
  constexpr auto smallest_normal = static_cast<std::uint32_t>(128 - bias) << 23;
  const std::uint32_t code = magnitude < smallest_normal ? subnormal : normal;
  return static_cast<std::uint8_t>(std::min(code, largest) | sign << sign_shift);
}
inline std::uint8_t e4m3_code(float value) { return small_float_code<3, 7, 0x7e, 7>(value); }
inline std::uint8_t e5m2_code(float value) { return small_float_code<2, 15, 0x7b, 7>(value); }
inline std::uint8_t e2m1_code(float value) { return small_float_code<1, 1, 7, 3>(value); }

// --- Refusals: empty where all is well ---

std::string refuse_kind(const WeightShape& shape, std::string_view format,
                        std::initializer_list<LayerKind> kinds);
// K is not a multiple; `what` names it: "the packing of 64".
std::string refuse_columns(const WeightShape& shape, std::uint64_t multiple, std::string_view what);
std::string refuse_group(const WeightShape& shape, std::uint64_t rotate_group);
// For formats whose other tools add rows: how many there really are could not be told from the
// file.
std::string refuse_padding(const WeightShape& shape, std::uint64_t row_padding,
                           std::string_view format);
// For formats that are never rotated.
std::string refuse_rotation(const EncodeSettings& settings, std::string_view format);
// For formats with one scale group, or none (0).
std::string refuse_scale_group(const EncodeSettings& settings, std::string_view format,
                               std::uint64_t scale_group);
// The first that is not empty.
std::string first_refusal(std::initializer_list<std::string> refusals);

// --- Markers, as Python's json.dumps spells them ---

class MarkerText {
 public:
  // Begins with format and, where asked for, full_precision_matrix_mult.
  MarkerText(std::string_view format, const EncodeSettings& settings);
  MarkerText& flag(std::string_view key);
  MarkerText& number(std::string_view key, std::uint64_t value);
  MarkerText& text(std::string_view key, std::string_view value);
  // Ends with num_experts, where there are several.
  std::string end(const WeightShape& shape);

 private:
  std::string json_;
};

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_ENCODING_H_
