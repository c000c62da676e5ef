// asym_w4a8_int8 and w6a8_int8: codes that decode to int8 weights by a scale for each group and one
// for the row.
//
//   value = w8 · s_channel,   w8 = clamp(rne(level[code] · s_rel), -127, 127)
//
// s_rel has 127 values, so all that a group can hold is a table: for each byte of s_rel, the int8
// weights of its codes. Which of them is nearest to u = w / s_channel changes at halves only, where
// two integers are equally far, so it is looked up by floor(2u).
//
// Fitting a row: for a given s_channel each group takes the byte with the least error, of those
// around the one that its largest value asks for; s_channel is searched around comfy-kitchen's,
// since it moves all groups over the coarse steps of e4m3, and at last refined by least squares.

#include <limits>

#include "base/bytes.h"
#include "base/floats.h"
#include "convert/best/grid.h"
#include "convert/best/sums.h"
#include "formats/asym_w4a8_int8/layout.h"
#include "formats/relative_scales.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::convert {
namespace {

constexpr int bytes = 127;       // 0x7f is no number
constexpr int half_steps = 512;  // floor(2u) + 256 for u of -128 .. 128
constexpr int refinements = 2;

struct RelativeRules {
  int below, above;               // bytes looked at around that of the largest value
  std::array<float, 8> channels;  // scales looked at, as parts of absmax / 127
};
constexpr RelativeRules w4a8_rules{5, 2, {1.0f, 1.05f, 1.1f, 1.15f, 1.22f, 1.3f, 1.4f, 1.5f}};
constexpr RelativeRules w6a8_rules{3, 2, {0.98f, 0.99f, 1.0f, 1.01f, 1.02f, 1.04f, 1.06f, 1.08f}};

std::vector<float> levels_of(const std::optional<std::array<float, 16>>& codebook) {
  if (codebook) return {codebook->begin(), codebook->end()};
  std::vector<float> levels;
  for (int level = -31; level <= 31; ++level) levels.push_back(static_cast<float>(level));
  return levels;
}

class RelativeGrid final : public Grid {
 public:
  RelativeGrid(const BestLayer& layer, const std::optional<std::array<float, 16>>& codebook)
      : columns_(layer.weight.columns),
        group_(scale_group_of(layer)),
        groups_(columns_ / group_),
        six_bits_(!codebook),
        rules_(codebook ? w4a8_rules : w6a8_rules),
        codebook_(codebook),
        levels_(levels_of(codebook)) {
    for (float level : levels_) top_ = std::max(top_, std::fabs(level));
    code_.resize(bytes * half_steps);
    weight_.resize(bytes * half_steps);
    for (int byte = 0; byte < bytes; ++byte) fill_tables(byte);
  }

  void fit(Row w, Row energy, RowFit& row) const override {
    row.codes.resize(columns_);
    row.groups.assign(groups_, 0);
    const float absmax = largest(w);
    row.scale = plain_channel_scale(w);
    std::vector<std::uint8_t> groups(groups_);
    double least = search(w, energy, row.scale, row.groups);
    const auto look = [&](float scale) {
      if (!(scale > 0) || !std::isfinite(scale)) return false;
      const double error = search(w, energy, scale, groups);
      if (!(error < least)) return false;
      least = error;
      row.scale = scale;
      row.groups.swap(groups);
      return true;
    };
    for (float part : rules_.channels) look(absmax * part / 127.0f);
    for (int i = 0; i < refinements && look(refined(w, energy, row)); ++i) {
    }
    for (std::uint64_t k = 0; k < columns_; ++k) nearest(w[k], k, row);
  }

  float nearest(float w, std::uint64_t column, RowFit& row) const override {
    const std::size_t at = row.groups[column / group_] * half_steps + half_step(w / row.scale);
    row.codes[column] = code_[at];
    return static_cast<float>(weight_[at]) * row.scale;
  }

  float value(std::uint64_t column, const RowFit& row) const override {
    const std::size_t level = row.codes[column] - (six_bits_ ? 1 : 0);
    return formats::int8_level(levels_[level], e4m3_to_float(row.groups[column / group_])) *
           row.scale;
  }

  void store(const RowFit& row, std::uint64_t index,
             const formats::EncodeBuffers& buffers) const override {
    const auto& codes = row.codes;
    for (std::uint64_t g = 0; g < groups_; ++g)
      buffers.tensors[1][index * groups_ + g] = static_cast<std::byte>(row.groups[g]);
    store_at(buffers.tensors[2], index, row.scale);
    if (codebook_ && index == 0)
      for (std::size_t i = 0; i < codebook_->size(); ++i)
        store_at(buffers.tensors[3], i, (*codebook_)[i]);
    const std::uint64_t row_bytes =
        six_bits_ ? W6A8Weight::row_bytes(columns_) : AsymW4A8Weight::row_bytes(columns_);
    std::byte* out = buffers.tensors[0] + (index - buffers.first_row) * row_bytes;
    for (std::uint64_t k = 0; k < columns_; k += 2)
      out[k / 2] = static_cast<std::byte>((codes[k] & 15) | (codes[k + 1] & 15) << 4);
    if (!six_bits_) return;
    std::byte* high = out + W6A8Weight::high_plane(columns_);
    for (std::uint64_t k = 0; k < columns_; k += 4)
      high[k / 4] = static_cast<std::byte>(codes[k] >> 4 | codes[k + 1] >> 4 << 2 |
                                           codes[k + 2] >> 4 << 4 | codes[k + 3] >> 4 << 6);
  }

 private:
  static std::size_t half_step(float u) {
    const float limited = std::min(std::max(u, -128.0f), 127.75f);
    return static_cast<std::size_t>(static_cast<int>(limited * 2.0f + 256.0f));  // rounds down
  }

  void fill_tables(int byte) {
    const float scale = e4m3_to_float(static_cast<std::uint8_t>(byte));
    std::vector<float> weights;
    for (float level : levels_) weights.push_back(formats::int8_level(level, scale));
    std::size_t near = 0;
    for (int step = 0; step < half_steps; ++step) {
      const float u = 0.5f * static_cast<float>(step - 256) + 0.25f;
      while (near + 1 < weights.size() &&
             std::fabs(weights[near + 1] - u) <= std::fabs(weights[near] - u))
        ++near;
      std::size_t code =
          near;  // of codes that mean the same the first, but of all zeros the middle
      while (code > 0 && weights[code - 1] == weights[near]) --code;
      if (weights.front() == weights.back()) code = weights.size() / 2;
      code_[byte * half_steps + step] = static_cast<std::uint8_t>(code + (six_bits_ ? 1 : 0));
      weight_[byte * half_steps + step] = static_cast<std::int8_t>(weights[near]);
    }
  }

  // The level that is nearest to z, before any rounding to int8.
  float plain_level(float z) const {
    if (six_bits_) return nearest_integer(clamped(z, 31));
    float level = levels_[0];
    for (std::size_t i = 1; i < levels_.size(); ++i)
      level = std::fabs(levels_[i] - z) < std::fabs(level - z) ? levels_[i] : level;
    return level;
  }

  // Comfy-kitchen's s_channel: group scales by two rounds of least squares, then the largest
  // product of scale and level over 127.
  float plain_channel_scale(Row w) const {
    std::vector<float> level(group_);
    float most = 0;
    for (std::uint64_t g = 0; g < groups_; ++g) {
      const Row part = w.subspan(g * group_, group_);
      float scale = std::max(largest(part) / (six_bits_ ? 31.0f : 1.0f), 1e-8f);
      for (int round = 0; round < 3; ++round) {
        float products = 0, squares = 0, top = 0;
        for (std::uint64_t k = 0; k < group_; ++k) {
          level[k] = plain_level(part[k] / scale);
          products += part[k] * level[k];
          squares += level[k] * level[k];
          top = std::max(top, std::fabs(level[k]));
        }
        if (round == 2)
          most = std::max(most, top * scale);
        else
          scale = std::max(products / std::max(squares, 1e-8f), 1e-8f);
      }
    }
    return std::max(most / 127.0f, 1e-8f);
  }

  // The best byte of each group under s_channel = scale, and the row's error with them.
  double search(Row w, Row energy, float scale, std::vector<std::uint8_t>& groups) const {
    std::vector<float> u(group_);
    std::vector<std::uint32_t> step(group_);
    double total = 0;
    for (std::uint64_t g = 0; g < groups_; ++g) {
      const float* part = w.data() + g * group_;
      const float* e = energy.data() + g * group_;
      for (std::uint64_t k = 0; k < group_; ++k) u[k] = part[k] / scale;
      for (std::uint64_t k = 0; k < group_; ++k)
        step[k] = static_cast<std::uint32_t>(half_step(u[k]));
      const float top = largest(u);
      const int centre = float_to_e4m3(std::min(top / top_, 448.0f));
      float least = std::numeric_limits<float>::infinity();
      for (int byte = std::max(0, centre - rules_.below);
           byte <= std::min(bytes - 1, centre + rules_.above); ++byte) {
        const std::int8_t* weights = weight_.data() + byte * half_steps;
        const float error = sum_of<float>(group_, [&](std::size_t k) {
          const float off = u[k] - static_cast<float>(weights[step[k]]);
          return e[k] * off * off;
        });
        if (!(error < least)) continue;
        least = error;
        groups[g] = static_cast<std::uint8_t>(byte);
      }
      total += least;
    }
    return total * scale * scale;
  }

  float refined(Row w, Row energy, const RowFit& row) const {
    double products = 0, squares = 0;
    for (std::uint64_t k = 0; k < columns_; ++k) {
      const double weight =
          weight_[row.groups[k / group_] * half_steps + half_step(w[k] / row.scale)];
      products += static_cast<double>(energy[k]) * weight * w[k];
      squares += static_cast<double>(energy[k]) * weight * weight;
    }
    return squares > 0 ? static_cast<float>(products / squares) : 0.0f;
  }

  std::uint64_t columns_, group_, groups_;
  bool six_bits_;
  RelativeRules rules_;
  std::optional<std::array<float, 16>> codebook_;
  std::vector<float> levels_;
  float top_ = 0;
  std::vector<std::uint8_t> code_;   // [byte][half step]: the code to store
  std::vector<std::int8_t> weight_;  // [byte][half step]: the int8 weight that it means
};

}  // namespace

std::unique_ptr<Grid> relative_grid(const BestLayer& layer,
                                    const std::optional<std::array<float, 16>>& codebook) {
  return std::make_unique<RelativeGrid>(layer, codebook);
}

}  // namespace parfait::convert
