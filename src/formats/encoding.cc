#include "formats/encoding.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/hadamard.h"

namespace parfait::formats {

bool all_finite(std::span<const float> values) { return std::isfinite(largest_magnitude(values)); }

void prepare(const EncodeSettings& settings, std::span<float> values) {
  with_arithmetic(settings.arithmetic, [&](auto arithmetic) {
    for (float& value : values) value = arithmetic.round(value);
    if (settings.rotate_group == 0) return;
    rotate_groups(values, settings.rotate_group);
    for (float& value : values) value = arithmetic.round(value);
  });
}

Result<Survey> survey_largest(const WeightShape& shape, const EncodeSettings& settings,
                              const RowReader& reader) {
  constexpr std::uint64_t values_at_once = 1 << 18;  // 1 MB: stays in a cache
  const std::uint64_t rows_at_once =
      std::max<std::uint64_t>(1, values_at_once / std::max<std::uint64_t>(1, shape.columns));
  std::vector<float> values(std::min(rows_at_once, shape.rows) * shape.columns);
  Survey survey;
  for (std::uint64_t row = 0; row < shape.rows; row += rows_at_once) {
    const std::uint64_t count = std::min(rows_at_once, shape.rows - row);
    const std::span<float> part(values.data(), count * shape.columns);
    if (auto read = reader(row, count, part.data()); !read.ok()) return read.error();
    prepare(settings, part);
    const float largest = largest_magnitude(part);
    if (!(largest <= survey.absmax)) survey.absmax = largest;
    if (!std::isfinite(largest)) break;
  }
  return survey;
}

std::string refuse_kind(const WeightShape& shape, std::string_view format,
                        std::initializer_list<LayerKind> kinds) {
  if (std::find(kinds.begin(), kinds.end(), shape.kind) == kinds.end())
    return fmt::format("{} does not hold layers of the kind {}", format,
                       layer_kind_name(shape.kind));
  if (shape.rows == 0 || shape.columns == 0) return "the weight is empty";
  return {};
}

std::string refuse_columns(const WeightShape& shape, std::uint64_t multiple,
                           std::string_view what) {
  if (shape.columns % multiple == 0) return {};
  return fmt::format("K = {} is not a multiple of {}", shape.columns, what);
}

std::string refuse_group(const WeightShape& shape, std::uint64_t rotate_group) {
  if (!is_rotation_group(rotate_group))
    return fmt::format("a ConvRot group of {} is not a power of 4", rotate_group);
  return refuse_columns(shape, rotate_group, fmt::format("the ConvRot group {}", rotate_group));
}

std::string refuse_padding(const WeightShape& shape, std::uint64_t row_padding,
                           std::string_view format) {
  if (shape.rows % row_padding == 0) return {};
  return fmt::format(
      "N = {} is not a multiple of {}, to which {} is padded, and a file does not tell rows from "
      "padding",
      shape.rows, row_padding, format);
}

std::string refuse_rotation(const EncodeSettings& settings, std::string_view format) {
  if (settings.rotate_group == 0) return {};
  return fmt::format("{} is never rotated: readers would ignore the ConvRot group {}", format,
                     settings.rotate_group);
}

std::string refuse_scale_group(const EncodeSettings& settings, std::string_view format,
                               std::uint64_t scale_group) {
  if (settings.scale_group == 0 || settings.scale_group == scale_group) return {};
  if (scale_group == 0)
    return fmt::format("{} has no scale groups, of {} or otherwise", format, settings.scale_group);
  return fmt::format("{} has scale groups of {}, not of {}", format, scale_group,
                     settings.scale_group);
}

std::string first_refusal(std::initializer_list<std::string> refusals) {
  for (const std::string& refusal : refusals)
    if (!refusal.empty()) return refusal;
  return {};
}

MarkerText::MarkerText(std::string_view format, const EncodeSettings& settings)
    : json_(fmt::format("{{\"format\": \"{}\"", format)) {
  if (settings.full_precision) flag("full_precision_matrix_mult");
}

MarkerText& MarkerText::flag(std::string_view key) {
  json_ += fmt::format(", \"{}\": true", key);
  return *this;
}

MarkerText& MarkerText::number(std::string_view key, std::uint64_t value) {
  json_ += fmt::format(", \"{}\": {}", key, value);
  return *this;
}

MarkerText& MarkerText::text(std::string_view key, std::string_view value) {
  json_ += fmt::format(", \"{}\": \"{}\"", key, value);
  return *this;
}

std::string MarkerText::end(const WeightShape& shape) {
  if (shape.kind == LayerKind::experts) number("num_experts", shape.shape.front());
  return json_ + "}";
}

}  // namespace parfait::formats
