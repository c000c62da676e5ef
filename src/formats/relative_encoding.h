// What the encoders of asym_w4a8_int8 and w6a8_int8 share: a scale for each group that fits the
// group's weights to levels, and codes on the int8 grid (relative_scales.h).
//
// With w a group's weights, v[c] the level of code c, all in float:
//
//   gs = first guess; twice: c = nearest(w / gs), gs = max(Σ w·v[c] / max(Σ v[c]², 1e-8), 1e-8)
//   s_channel = max(largest |v[c]·gs| of the row / 127, 1e-8)
//   s_rel = e4m3(gs / s_channel)
//   code = the c whose clamp(rne(v[c] · s_rel), ±127) is nearest to w / s_channel
//
// Of two levels as near as each other the lower is taken. Sums are in the order of torch's kernel
// for x86 (it has one whatever the processor), so that scales agree with comfy-kitchen's to the
// bit.
#ifndef PARFAIT_FORMATS_RELATIVE_ENCODING_H_
#define PARFAIT_FORMATS_RELATIVE_ENCODING_H_

#include <array>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/encoding.h"

namespace parfait::formats {

// The sum as torch has it: eight lanes, each of four partial sums where there are 32 values and
// more; then the lanes in order. (Beyond 512 values torch's order is another.)
float torch_sum(std::span<const float> values);

inline constexpr float least_scale = 1e-8f;

// What fit_group() finds: the scale, and the largest magnitude that a level has with it.
struct GroupFit {
  float scale = 0, reach = 0;
};

// `level_of` gives the level nearest to a value.
template <class LevelOf>
GroupFit fit_group(std::span<const float> w, float scale, const LevelOf& level_of,
                   std::vector<float>& scratch) {
  const std::size_t n = w.size();
  scratch.resize(2 * n);
  const std::span<float> products(scratch.data(), n), squares(scratch.data() + n, n);
  for (int refit = 0; refit < 2; ++refit) {
    for (std::size_t k = 0; k < n; ++k) {
      const float level = level_of(w[k] / scale);
      products[k] = w[k] * level;
      squares[k] = level * level;
    }
    scale = std::max(least_scale, torch_sum(products) / std::max(least_scale, torch_sum(squares)));
  }
  float reach = 0;
  for (std::size_t k = 0; k < n; ++k)
    reach = std::max(reach, std::fabs(level_of(w[k] / scale) * scale));
  return {scale, reach};
}

// The int8 values of all levels under each s_rel byte, made when first asked for. Not shared
// between threads.
class Int8Grid {
 public:
  explicit Int8Grid(std::span<const float> levels);  // at most 64, ascending

  struct Values {
    std::array<float, 64> value{};
    std::array<std::uint8_t, 257> first_from{};  // of integer i - 128: the first value not below it
    bool made = false;
  };
  const Values& of(std::uint8_t s_rel);  // an e4m3 byte, not negative

  // The index of the value nearest to w.
  unsigned nearest(const Values& values, float w) const {
    const float inside = std::min(128.0f, std::max(-128.0f, w));
    int up = static_cast<int>(inside);
    up += inside > static_cast<float>(up);
    const unsigned from = values.first_from[static_cast<unsigned>(up + 128)];
    const unsigned low = from == 0 ? 0 : from - 1, high = std::min(from, count_ - 1);
    const float to_low = std::fabs(w - values.value[low]);
    const float to_high = std::fabs(w - values.value[high]);
    return to_high < to_low ? high : low;
  }

 private:
  std::span<const float> levels_;
  unsigned count_;
  std::vector<Values> of_byte_;
};

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_RELATIVE_ENCODING_H_
