// The regular Hadamard ("ConvRot") transform, plainly.
//
// H4 = ½·[[+ + + −] [+ + − +] [+ − + +] [− + + +]] and H_4G = H_G ⊗ H4. H_G is symmetric,
// orthogonal and its own inverse, so the same call rotates and un-rotates. Source: comfy-kitchen
// tensor/int8_utils.py; closed form sign(i,j) = (−1)^(number of base-4 digits d with i_d + j_d =
// 3).
//
// rotate_groups is the definition that every faster path must match bit for bit: stages of stride
// 1, 4, 16, ..., G/4; in each, with a, b, c, d at i, i+s, i+2s, i+3s and t = ½·(a + b + c + d)
// summed as (a + b) + (c + d): y0 = t − d, y1 = t − c, y2 = t − b, y3 = t − a.
#ifndef PARFAIT_BASE_HADAMARD_H_
#define PARFAIT_BASE_HADAMARD_H_

#include <cstdint>
#include <span>

namespace parfait {

// Whether H_G exists: G is 4, 16, 64, ...
constexpr bool is_rotation_group(std::uint64_t group) {
  while (group > 4 && group % 4 == 0) group /= 4;
  return group == 4;
}

// Multiplies each run of `group` values by H_group, in float, in place. values.size() must be a
// multiple of group, and is_rotation_group(group); a group of 0 leaves the values as they are.
void rotate_groups(std::span<float> values, std::uint64_t group);

}  // namespace parfait

#endif  // PARFAIT_BASE_HADAMARD_H_
