// Encode: as relative_encoding.h has it, of the rotated weight, with levels -31 .. 31; the first
// guess of a group's scale is its largest magnitude / 31. Then s_rel's byte b and its neighbours
// b - 1 and b + 1 are tried: the first whose codes have the least Σ (int8 value - w / s_channel)².

#include <fmt/format.h>

#include "base/bytes.h"
#include "formats/relative_encoding.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::formats {
namespace {

using Weight = W6A8Weight;

constexpr int largest_level = 31;
constexpr std::uint8_t largest_scale = 0x7e;  // 448
constexpr auto levels = [] {
  std::array<float, 2 * largest_level + 1> all{};
  for (int level = -largest_level; level <= largest_level; ++level)
    all[static_cast<unsigned>(level + largest_level)] = static_cast<float>(level);
  return all;
}();

std::uint64_t group_of(const EncodeSettings& settings) {
  return settings.scale_group == 0 ? Weight::least_group : settings.scale_group;
}

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  if (settings.rotate_group == 0) return "w6a8_int8 is always rotated and has no ConvRot group";
  const std::uint64_t group = group_of(settings);
  if (group % Weight::least_group != 0)
    return fmt::format("scale groups of {} are not a multiple of 16", group);
  return first_refusal({refuse_kind(shape, "w6a8_int8", {LayerKind::linear}),
                        refuse_columns(shape, Weight::pack_columns, "w6a8_int8's packing of 32"),
                        refuse_columns(shape, group, fmt::format("the scale group {}", group)),
                        refuse_group(shape, settings.rotate_group)});
}

std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings& settings) {
  return {
      {"weight", DType::i8, {shape.rows, Weight::row_bytes(shape.columns)}},
      {"weight_s_rel", DType::f8_e4m3, {shape.rows, shape.columns / group_of(settings)}},
      {"weight_s_channel", DType::f32, {shape.rows}},
  };
}

std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  return MarkerText("w6a8_int8", settings)
      .number("group_size", group_of(settings))
      .flag("convrot")
      .number("convrot_groupsize", settings.rotate_group)
      .end(shape);
}

class RowEncoder {
 public:
  RowEncoder(std::uint64_t columns, std::uint64_t group)
      : grid_(levels),
        group_(group),
        codes_(columns),
        target_(group),
        errors_(group),
        tried_(group) {}

  // Returns the channel scale.
  float encode(std::span<const float> row, std::byte* relative) {
    scales_.clear();
    float reach = 0;
    const auto level_of = [](float value) {
      return static_cast<float>(to_code(value, -largest_level, largest_level));
    };
    for (std::size_t begin = 0; begin < row.size(); begin += group_) {
      const std::span<const float> w = row.subspan(begin, group_);
      const GroupFit fit = fit_group(
          w, std::max(least_scale, largest_magnitude(w) / static_cast<float>(largest_level)),
          level_of, scratch_);
      scales_.push_back(fit.scale);
      reach = std::max(reach, fit.reach);
    }
    const float channel = std::max(least_scale, reach / 127.0f);
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      for (std::size_t k = 0; k < group_; ++k) target_[k] = row[g * group_ + k] / channel;
      store_at(relative, g, choose(e4m3_code(scales_[g] / channel), &codes_[g * group_]));
    }
    return channel;
  }

  // Packs the codes of the last row in two planes.
  void pack(std::byte* out) const {
    std::byte* high = out + Weight::high_plane(codes_.size());
    for (std::size_t k = 0; k < codes_.size(); k += 4) {
      const std::uint8_t* c = &codes_[k];
      out[k / 2] = static_cast<std::byte>((c[0] & 15) | c[1] << 4);
      out[k / 2 + 1] = static_cast<std::byte>((c[2] & 15) | c[3] << 4);
      high[k / 4] =
          static_cast<std::byte>(c[0] >> 4 | c[1] >> 4 << 2 | c[2] >> 4 << 4 | c[3] >> 4 << 6);
    }
  }

 private:
  // The best of a byte and its neighbours, and the codes under it.
  std::uint8_t choose(std::uint8_t byte, std::uint8_t* codes) {
    std::uint8_t best = byte;
    float least = try_scale(byte);
    std::copy(tried_.begin(), tried_.end(), codes);
    for (int step : {-1, 1}) {
      const int next = byte + step;
      if (next < 1 || next > largest_scale) continue;
      const float error = try_scale(static_cast<std::uint8_t>(next));
      if (!(error < least)) continue;
      least = error;
      best = static_cast<std::uint8_t>(next);
      std::copy(tried_.begin(), tried_.end(), codes);
    }
    return best;
  }

  float try_scale(std::uint8_t byte) {
    const Int8Grid::Values& values = grid_.of(byte);
    for (std::size_t k = 0; k < group_; ++k) {
      const unsigned index = grid_.nearest(values, target_[k]);
      const float error = values.value[index] - target_[k];
      errors_[k] = error * error;
      tried_[k] = static_cast<std::uint8_t>(index + 1);  // level + 32
    }
    return torch_sum(errors_);
  }

  Int8Grid grid_;
  std::uint64_t group_;
  std::vector<std::uint8_t> codes_;  // of a row
  std::vector<float> target_, errors_;
  std::vector<std::uint8_t> tried_;
  std::vector<float> scales_, scratch_;
};

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey&,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns, groups = columns / group_of(settings);
  prepare(settings, {w, count * columns});
  RowEncoder encoder(columns, group_of(settings));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t row = first + i;
    store_at(buffers.tensors[2], row,
             encoder.encode({w + i * columns, columns}, buffers.tensors[1] + row * groups));
    encoder.pack(buffers.tensors[0] + (row - buffers.first_row) * Weight::row_bytes(columns));
  }
}

}  // namespace

extern const Encoder w6a8_int8_encoder;
const Encoder w6a8_int8_encoder = {refusal, tensors, marker, nullptr, encode};

}  // namespace parfait::formats
