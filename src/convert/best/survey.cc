// What concerns a whole tensor: its one scale, or its codebook.

#include <cmath>
#include <limits>

#include "base/floats.h"
#include "base/hadamard.h"
#include "base/result.h"
#include "convert/best/grid.h"
#include "convert/best/sums.h"

namespace parfait::convert {
namespace {

using formats::RowReader;

constexpr std::uint64_t values_at_once = 1 << 18;
// For a codebook.
constexpr std::uint64_t sampled_values = 1 << 16, least_rows = 16;
constexpr int codebook_rounds = 5;

// Calls visit(rows, count) for the whole weight in order, rotated.
template <class Visit>
Result<Done> for_rows(const BestLayer& layer, const RowReader& reader, const Visit& visit) {
  const std::uint64_t columns = layer.weight.columns;
  const std::uint64_t at_once = std::max<std::uint64_t>(1, values_at_once / columns);
  std::vector<float> rows(std::min(at_once, layer.weight.rows) * columns);
  for (std::uint64_t first = 0; first < layer.weight.rows; first += at_once) {
    const std::uint64_t count = std::min(at_once, layer.weight.rows - first);
    const std::span<float> part(rows.data(), count * columns);
    PARFAIT_CHECK_OK(reader(first, count, part.data()));
    if (layer.settings.rotate_group != 0) rotate_groups(part, layer.settings.rotate_group);
    visit(Row(part));
  }
  return Done{};
}

Result<float> find_absmax(const BestLayer& layer, const RowReader& reader) {
  float absmax = 0;
  PARFAIT_CHECK_OK(
      for_rows(layer, reader, [&](Row rows) { absmax = std::max(absmax, largest(rows)); }));
  return absmax;
}

// --- One scale for the tensor ---

// Scales looked at, as parts of the absmax one, which is the first. Integers may clip; for floats
// only the place of their steps between two powers of two matters.
std::vector<float> scale_parts(bool floats) {
  std::vector<float> parts{1.0f};
  for (int i = 1; i < 16; ++i)
    parts.push_back(floats ? 1.0f + static_cast<float>(i) / 16.0f
                           : 1.0f - static_cast<float>(i) / 40.0f);
  return parts;
}

float rounded(float value, const BestLayer& layer) {
  if (layer.format->name == "float8_e4m3fn") return round_to<e4m3>(value);
  if (layer.format->name == "float8_e5m2") return round_to<e5m2>(value);
  return nearest_integer(clamped(value, 127));
}

Result<float> search_scale(const BestLayer& layer, const RowReader& reader) {
  const bool integers = layer.format->name == "int8_tensorwise";
  const float top = integers ? 127.0f : layer.format->name == "float8_e4m3fn" ? 448.0f : 57344.0f;
  PARFAIT_TRY(const float absmax, find_absmax(layer, reader));
  const float plain = integers ? std::max(absmax / top, 1e-30f) : absmax / top;
  if (!(absmax > 0) || !std::isfinite(absmax)) return integers ? plain : 1.0f;
  const std::vector<float> parts = scale_parts(!integers);
  std::vector<double> products(parts.size()), squares(parts.size());
  PARFAIT_CHECK_OK(for_rows(layer, reader, [&](Row rows) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const float inverse = 1.0f / (plain * parts[i]);
      std::array<double, lanes> product{}, square{};
      for (std::size_t k = 0; k < rows.size(); ++k) {
        const double value = static_cast<double>(rounded(rows[k] * inverse, layer));
        product[k % lanes] += value * static_cast<double>(rows[k]);
        square[k % lanes] += value * value;
      }
      products[i] += join(product);
      squares[i] += join(square);
    }
  }));
  // Of a candidate's codes, with the scale that is best for them (row_grid.cc): no error is larger
  // than with the candidate itself, and codes that are nearest under that scale lessen it further.
  std::size_t best = 0;
  const auto gain = [&](std::size_t i) { return products[i] * products[i] / squares[i]; };
  for (std::size_t i = 1; i < parts.size(); ++i)
    if (gain(i) > gain(best)) best = i;
  const auto scale = static_cast<float>(products[best] / squares[best]);
  return scale > 0 && std::isfinite(scale) ? scale : plain;
}

// --- A codebook ---

// Rows, evenly strided, one behind the other, rotated.
Result<std::vector<float>> sample(const BestLayer& layer, const RowReader& reader) {
  const std::uint64_t columns = layer.weight.columns, rows = layer.weight.rows;
  const std::uint64_t count = std::min(rows, std::max(least_rows, sampled_values / columns));
  std::vector<float> values(count * columns);
  for (std::uint64_t i = 0; i < count; ++i)
    PARFAIT_CHECK_OK(reader(i * rows / count, 1, values.data() + i * columns));
  if (layer.settings.rotate_group != 0) rotate_groups(values, layer.settings.rotate_group);
  return values;
}

struct Refit {
  double error = 0;                              // of the codebook that was used
  std::array<double, 16> products{}, squares{};  // for the levels that would be best for its codes

  std::array<float, 16> codebook(const std::array<float, 16>& old) const {
    std::array<float, 16> levels = old;
    for (std::size_t i = 0; i < levels.size(); ++i)
      if (squares[i] > 0) levels[i] = static_cast<float>(products[i] / squares[i]);
    std::sort(levels.begin(), levels.end());
    return levels;
  }
};

Refit try_codebook(const BestLayer& layer, Row values, Row energy,
                   const std::array<float, 16>& codebook) {
  const std::unique_ptr<Grid> grid = relative_grid(layer, codebook);
  const std::uint64_t columns = layer.weight.columns, group = scale_group_of(layer);
  Refit refit;
  RowFit fit;
  for (std::size_t at = 0; at < values.size(); at += columns) {
    const Row w = values.subspan(at, columns);
    grid->fit(w, energy, fit);
    for (std::uint64_t k = 0; k < columns; ++k) {
      const double off = static_cast<double>(w[k]) - static_cast<double>(grid->value(k, fit));
      const double scale = static_cast<double>(fit.scale) *
                           static_cast<double>(e4m3_to_float(fit.groups[k / group]));
      refit.error += static_cast<double>(energy[k]) * off * off;
      refit.products[fit.codes[k]] += static_cast<double>(energy[k]) * scale * w[k];
      refit.squares[fit.codes[k]] += static_cast<double>(energy[k]) * scale * scale;
    }
  }
  return refit;
}

// From comfy-kitchen's choice on: levels that are best for the codes, codes for the levels (Lloyd),
// as long as the sample's error becomes smaller by more than what a sample proves.
Result<std::array<float, 16>> search_codebook(const BestLayer& layer, const RowReader& reader) {
  PARFAIT_TRY(const formats::Survey plain,
              layer.format->encoder->survey(layer.weight, layer.settings, reader));
  PARFAIT_TRY(const std::vector<float> values, sample(layer, reader));
  const std::vector<float> ones(layer.weight.columns, 1.0f);
  const Row energy = layer.inputs != nullptr ? Row(layer.inputs->energy) : Row(ones);
  std::array<float, 16> best = plain.codebook.value(), levels = best;
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < codebook_rounds; ++round) {
    const Refit refit = try_codebook(layer, values, energy, levels);
    const bool better = refit.error < least * (round == 0 ? 1.0 : 0.999);
    if (better) {
      least = refit.error;
      best = levels;
    }
    levels = refit.codebook(levels);
  }
  return best;
}

}  // namespace

Result<BestSurvey> survey_best(const BestLayer& layer, const RowReader& reader) {
  BestSurvey survey;
  const std::string_view format = layer.format->name;
  if (format == "asym_w4a8_int8") {
    PARFAIT_TRY(survey.codebook, search_codebook(layer, reader));
  } else if (format == "nvfp4") {
    PARFAIT_TRY(const float absmax, find_absmax(layer, reader));
    survey.scale = absmax / 2688.0f;  // 448 · 6: the largest block scale and level
  } else if (format.starts_with("float8_") ||
             (format == "int8_tensorwise" && layer.settings.scale_of == formats::ScaleOf::tensor)) {
    PARFAIT_TRY(survey.scale, search_scale(layer, reader));
  }
  return survey;
}

}  // namespace parfait::convert
