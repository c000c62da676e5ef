// What asym_w4a8_int8 and w6a8_int8 share: codes that decode to int8 weights by a scale for each
// group of inputs, relative to the row's. With v a code's level, s_rel the group's and s_channel
// the row's scale:
//
//   w8 = clamp(rne(v · s_rel), -127, 127)        the int8 weight
//   W  = rotate(w8 · s_channel + correction)     correction: 0 where the layer has none
#ifndef PARFAIT_FORMATS_RELATIVE_SCALES_H_
#define PARFAIT_FORMATS_RELATIVE_SCALES_H_

#include <cstdint>
#include <vector>

#include "formats/common.h"

namespace parfait::formats {

// The group size that makes weight and weight_s_rel fit, for `bits` bits a code; 0 if none does.
std::uint64_t proven_group(const Evidence& evidence, unsigned bits);

std::vector<PartSpec> relative_scale_parts();  // weight, weight_s_rel, weight_s_channel

// Shapes of scales, rotation, columns that fit a scale group. `least_columns` divides K.
void check_relative_scales(const Layer& layer, std::uint64_t least_columns, FindingSink& sink);
void check_relative_scale_values(const LayerData& data, FindingSink& sink);

// Bytes of the scales at another shape.
std::uint64_t relative_scale_bytes(const Layer& layer, std::uint64_t rows, std::uint64_t columns);

// The level of the int8 grid: clamp(rne(level · s_rel), -127, 127). NaN stays NaN.
inline float int8_level(float level, float s_rel) {
  const float scaled = level * s_rel;
  const float clamped = scaled > 127.0f ? 127.0f : scaled < -127.0f ? -127.0f : scaled;
  constexpr float to_integer = 0x1.8p23f;  // a sum with it has no bits left for fractions
  return (clamped + to_integer) - to_integer;
}

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_RELATIVE_SCALES_H_
