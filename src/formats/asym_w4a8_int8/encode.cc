// Encode: as relative_encoding.h has it, of the rotated weight, with the levels of codebook.h; the
// first guess of a group's scale is its largest magnitude. The symmetric variant with a codebook,
// comfy-kitchen's default.

#include <fmt/format.h>

#include "base/bytes.h"
#include "formats/asym_w4a8_int8/codebook.h"
#include "formats/asym_w4a8_int8/layout.h"
#include "formats/relative_encoding.h"

namespace parfait::formats {
namespace {

using Weight = AsymW4A8Weight;

std::uint64_t group_of(const EncodeSettings& settings) {
  return settings.scale_group == 0 ? Weight::default_group : settings.scale_group;
}

std::string refusal(const WeightShape& shape, const EncodeSettings& settings) {
  if (settings.rotate_group == 0)
    return "asym_w4a8_int8 is always rotated and has no ConvRot group";
  const std::uint64_t group = group_of(settings);
  if (group < 4 || (16 % group != 0 && group % 16 != 0))
    return fmt::format("scale groups of {} are not 4, 8, 16 or a multiple of 16", group);
  return first_refusal(
      {refuse_kind(shape, "asym_w4a8_int8", {LayerKind::linear, LayerKind::experts}),
       refuse_columns(shape, Weight::pack_columns, "asym_w4a8_int8's packing of 16"),
       refuse_columns(shape, group, fmt::format("the scale group {}", group)),
       refuse_group(shape, settings.rotate_group)});
}

std::vector<EncodedTensor> tensors(const WeightShape& shape, const EncodeSettings& settings) {
  // [N, K/2], [N, K/G], [N]; with several experts E before them.
  std::vector<std::uint64_t> weight = shape.shape, relative = shape.shape, channel = shape.shape;
  weight.back() = Weight::row_bytes(shape.columns);
  relative.back() = shape.columns / group_of(settings);
  channel.pop_back();
  return {{"weight", DType::i8, weight},
          {"weight_s_rel", DType::f8_e4m3, relative},
          {"weight_s_channel", DType::f32, channel},
          {"weight_codebook", DType::f32, {Weight::codebook_size}}};
}

// ComfyUI's own saver leaves convrot out and ignores it; SGLang demands it.
std::string marker(const WeightShape& shape, const EncodeSettings& settings) {
  return MarkerText("asym_w4a8_int8", settings)
      .number("group_size", group_of(settings))
      .flag("convrot")
      .number("convrot_groupsize", settings.rotate_group)
      .end(shape);
}

Result<Survey> survey(const WeightShape& shape, const EncodeSettings& settings,
                      const RowReader& reader) {
  const std::vector<std::uint64_t> rows = codebook_rows(shape.rows, shape.columns);
  std::vector<float> values(rows.size() * shape.columns);
  Survey survey;
  for (std::size_t i = 0; i < rows.size();) {
    std::size_t end = i + 1;  // neighbours are read at once
    while (end < rows.size() && rows[end] == rows[i] + (end - i)) ++end;
    float* to = values.data() + i * shape.columns;
    if (auto read = reader(rows[i], end - i, to); !read.ok()) return read.error();
    i = end;
  }
  prepare(settings, values);
  survey.absmax = largest_magnitude(values);
  if (!std::isfinite(survey.absmax)) return survey;
  const std::size_t group = group_of(settings);
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    const std::span<float> part(values.data() + begin, group);
    const float largest = std::max(least_scale, largest_magnitude(part));
    for (float& value : part) value /= largest;
  }
  survey.codebook = choose_codebook(values);
  return survey;
}

// One row, of which a byte has two columns, the even one in the low nibble.
class RowEncoder {
 public:
  RowEncoder(const Codebook& codebook, std::uint64_t group)
      : nearest_(codebook), grid_(codebook), group_(group) {}

  // Returns the channel scale.
  float encode(std::span<const float> row, std::byte* codes, std::byte* relative) {
    scales_.clear();
    float reach = 0;
    for (std::size_t begin = 0; begin < row.size(); begin += group_) {
      const std::span<const float> w = row.subspan(begin, group_);
      const GroupFit fit =
          fit_group(w, std::max(least_scale, largest_magnitude(w)), nearest_, scratch_);
      scales_.push_back(fit.scale);
      reach = std::max(reach, fit.reach);
    }
    const float channel = std::max(least_scale, reach / 127.0f);
    for (std::size_t g = 0; g < scales_.size(); ++g) {
      const std::uint8_t byte = e4m3_code(scales_[g] / channel);
      store_at(relative, g, byte);
      const Int8Grid::Values& values = grid_.of(byte);
      for (std::size_t k = g * group_; k < (g + 1) * group_; k += 2)
        codes[k / 2] = static_cast<std::byte>(grid_.nearest(values, row[k] / channel) |
                                              grid_.nearest(values, row[k + 1] / channel) << 4);
    }
    return channel;
  }

 private:
  NearestLevel nearest_;
  Int8Grid grid_;
  std::uint64_t group_;
  std::vector<float> scales_, scratch_;
};

void encode(const WeightShape& shape, const EncodeSettings& settings, const Survey& survey,
            std::uint64_t first, std::uint64_t count, float* w, const EncodeBuffers& buffers) {
  const std::uint64_t columns = shape.columns, groups = columns / group_of(settings);
  const std::uint64_t row_bytes = Weight::row_bytes(columns);
  const Codebook& codebook = survey.codebook ? *survey.codebook : fixed_codebook();
  prepare(settings, {w, count * columns});
  if (first == 0)
    for (std::size_t c = 0; c < codebook.size(); ++c) store_at(buffers.tensors[3], c, codebook[c]);
  RowEncoder encoder(codebook, group_of(settings));
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t row = first + i;
    const float channel = encoder.encode({w + i * columns, columns},
                                         buffers.tensors[0] + (row - buffers.first_row) * row_bytes,
                                         buffers.tensors[1] + row * groups);
    store_at(buffers.tensors[2], row, channel);
  }
}

}  // namespace

extern const Encoder asym_w4a8_int8_encoder;
const Encoder asym_w4a8_int8_encoder = {refusal, tensors, marker, survey, encode};

}  // namespace parfait::formats
