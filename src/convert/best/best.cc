#include "convert/best/best.h"

#include <algorithm>
#include <vector>

#include "base/hadamard.h"
#include "convert/best/feedback.h"
#include "convert/best/grid.h"
#include "formats/asym_w4a8_int8/layout.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t rows_at_once = 32;  // with error feedback

void encode_with_inputs(const BestLayer& layer, const Grid& grid, std::uint64_t first,
                        std::uint64_t count, const float* w,
                        const formats::EncodeBuffers& buffers) {
  const std::uint64_t columns = layer.weight.columns;
  std::vector<RowFit> fits(std::min(rows_at_once, count));
  std::vector<double> errors(fits.size());
  for (std::uint64_t at = 0; at < count; at += rows_at_once) {
    const std::uint64_t rows = std::min(rows_at_once, count - at);
    for (std::uint64_t r = 0; r < rows; ++r)
      grid.fit({w + (at + r) * columns, columns}, layer.inputs->energy, fits[r]);
    round_with_feedback(grid, *layer.inputs, w + at * columns, std::span(fits).first(rows),
                        std::span(errors).first(rows));
    for (std::uint64_t r = 0; r < rows; ++r) grid.store(fits[r], first + at + r, buffers);
  }
}

}  // namespace

bool has_best(std::string_view format) {
  return has_calibrated(format) || format == "float8_e4m3fn" || format == "float8_e5m2";
}

bool has_calibrated(std::string_view format) {
  constexpr std::string_view formats[] = {"int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8",
                                          "w6a8_int8",       "nvfp4",        "mxfp8"};
  return std::find(std::begin(formats), std::end(formats), format) != std::end(formats);
}

std::uint64_t scale_group_of(const BestLayer& layer) {
  return layer.settings.scale_group != 0 ? layer.settings.scale_group
                                         : AsymW4A8Weight::default_group;  // of w6a8_int8 too
}

std::unique_ptr<Grid> make_grid(const BestLayer& layer, const BestSurvey& survey) {
  const std::string_view format = layer.format->name;
  if (format == "convrot_w4a4") return row_grid(layer);
  if (format == "int8_tensorwise" && layer.settings.scale_of == formats::ScaleOf::row)
    return row_grid(layer);
  if (format == "int8_tensorwise" || format.starts_with("float8_"))
    return tensor_grid(layer, survey.scale);
  if (format == "asym_w4a8_int8" || format == "w6a8_int8")
    return relative_grid(layer, survey.codebook);
  if (format == "nvfp4" || format == "mxfp8") return block_grid(layer, survey.scale);
  return nullptr;
}

void encode_best(const BestLayer& layer, const BestSurvey& survey, std::uint64_t first,
                 std::uint64_t count, float* w, const formats::EncodeBuffers& buffers) {
  const std::uint64_t columns = layer.weight.columns;
  if (layer.settings.rotate_group != 0)
    rotate_groups({w, count * columns}, layer.settings.rotate_group);
  const std::unique_ptr<Grid> grid = make_grid(layer, survey);
  if (layer.inputs != nullptr) {
    encode_with_inputs(layer, *grid, first, count, w, buffers);
    return;
  }
  const std::vector<float> ones(columns, 1.0f);
  RowFit fit;
  for (std::uint64_t r = 0; r < count; ++r) {
    grid->fit({w + r * columns, columns}, ones, fit);
    grid->store(fit, first + r, buffers);
  }
}

}  // namespace parfait::convert
