// w6a8_int8: rotated 6-bit codes that a scale for each group turns into int8 weights. The bytes are
// in docs/formats/w6a8_int8.md.

#include <fmt/format.h>

#include <array>
#include <numeric>
#include <vector>

#include "base/hadamard.h"
#include "formats/common.h"
#include "formats/data_checks.h"
#include "formats/relative_scales.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::formats {
namespace {

using Weight = W6A8Weight;

bool is_scale_group(std::uint64_t group) { return group > 0 && group % Weight::least_group == 0; }

// Identify

// The widths must fit groups of 6-bit codes and none of asym_w4a8_int8's groups of 4-bit ones.
bool claims(const Evidence& evidence) {
  if (!is_scale_group(proven_group(evidence, 6)) ||
      !has_only(evidence, {"weight_s_rel", "weight_s_channel", "input_scale", "scale_input"}))
    return false;
  const std::uint64_t group = proven_group(evidence, 4);
  return group < 4 || (16 % group != 0 && group % 16 != 0);
}

void settle(const Marker* marker, Layer& layer, FindingSink& sink) {
  settle_shape(layer, {.weights = 4, .bytes = 3});
  settle_common(marker, {.convrot = true, .group_size = true}, layer, sink);
  settle_rotation(marker, Rotates::always, layer, sink);
  // Published files have groups of 16 and of 32, so the scales' shape decides, not a default.
  const TensorInfo* relative = layer.part("weight_s_rel");
  const std::uint64_t groups = is_matrix(relative) ? relative->shape[1] : 1;
  settle_scale_group(marker, layer.columns / groups, "which the scales' shape tells", layer, sink);
}

// Parts

std::vector<PartSpec> parts() { return relative_scale_parts(); }

// Check

void check(const Layer& layer, FindingSink& sink) {
  if (!check_matrix(layer, "[N, 3K/4]", sink)) return;
  if (!is_scale_group(layer.scale_group)) {
    sink.add(
        Severity::error, ErrorCode::layer_group, "",
        fmt::format("group_size {}", layer.scale_group), "a multiple of 16",
        fmt::format("K = {} cannot be in scale groups of {}", layer.columns, layer.scale_group));
    return;
  }
  check_relative_scales(layer, Weight::pack_columns, sink);
}

void check_data(const LayerData& data, FindingSink& sink) {
  check_relative_scale_values(data, sink);
  const std::uint64_t columns = data.layer->columns;
  const std::byte* codes = data.part("weight").data();
  std::array<std::array<std::uint64_t, 64>, 4> counts = {};
  Tally unwritten;
  for (std::uint64_t row = 0; row < data.layer->rows; ++row, codes += Weight::row_bytes(columns)) {
    for (std::uint64_t k = 0; k < columns; k += 4) {
      const FourCodes four = w6a8_codes(codes, columns, k);
      for (unsigned i = 0; i < 4; ++i) {
        ++counts[i][four.codes[i]];
        if (four.codes[i] == 0) unwritten.add(row * columns + k + i);
      }
    }
  }
  report_tally(data, "weight", unwritten, Severity::warning, ErrorCode::data_code_range,
               "codes of 0, where writers emit 1 to 63", sink);
  std::array<CodeCount, 64> all;
  for (unsigned code = 0; code < all.size(); ++code)
    all[code] = {static_cast<float>(static_cast<int>(code) - Weight::middle_code),
                 counts[0][code] + counts[1][code] + counts[2][code] + counts[3][code]};
  // Real weights have 3 and more; four codes in three bytes, read as planes, have about 1.5.
  check_bell_shape(data, all, 2.0, sink);
}

// Size

std::uint64_t size(const Layer& layer, std::uint64_t rows, std::uint64_t columns) {
  return rows * Weight::row_bytes(columns) + relative_scale_bytes(layer, rows, columns);
}

// Split

SplitRule split(const Layer& layer) {
  const std::uint64_t scale = layer.scale_group, rotate = layer.rotate_group;
  return {1, std::lcm(std::lcm(scale, rotate), Weight::pack_columns),
          fmt::format("ConvRot group {}, scale group {}, pack {}", rotate, scale,
                      Weight::pack_columns)};
}

// Decode: as relative_scales.h has it, of level = code − 32.

void decode(const LayerData& data, std::uint64_t first_row, std::uint64_t rows, float* out) {
  const Layer& layer = *data.layer;
  const std::uint64_t columns = layer.columns, groups = columns / layer.scale_group;
  const Values relative(data, "weight_s_rel", DType::f8_e4m3), channel(data, "weight_s_channel");
  const std::byte* codes = data.part("weight").data();
  for (std::uint64_t row = first_row; row < first_row + rows; ++row, out += columns) {
    const std::byte* code = codes + row * Weight::row_bytes(columns);
    const float s_channel = channel[row];
    for (std::uint64_t k = 0; k < columns; k += 4) {
      const float s_rel = relative[row * groups + k / layer.scale_group];
      const FourCodes four = w6a8_codes(code, columns, k);
      for (unsigned i = 0; i < 4; ++i) {
        const int level = static_cast<int>(four.codes[i]) - Weight::middle_code;
        out[k + i] = int8_level(static_cast<float>(level), s_rel) * s_channel;
      }
    }
    rotate_groups({out, columns}, layer.rotate_group);
  }
}

// Encode: encode.cc.

// Tolerance: the page says how it was measured.

constexpr Tolerance tolerance{
    .relative_l2 = 1e-5, .kitchen_f32 = 0.002, .kitchen_f16 = 0.006, .kitchen_bf16 = 0.014};

}  // namespace

extern const Encoder w6a8_int8_encoder;
extern const Format w6a8_int8_format;
const Format w6a8_int8_format = {
    .name = "w6a8_int8",
    .folder = "w6a8_int8",
    .summary = "rotated 6-bit codes with scales by group, on the int8 grid",
    .weight_bits = "6.5",
    .kinds = {LayerKind::linear},
    .claims = claims,
    .settle = settle,
    .parts = parts(),
    .check = check,
    .check_data = check_data,
    .size = size,
    .split = split,
    .decode = decode,
    .encoder = &w6a8_int8_encoder,
    .tolerance = tolerance,
};

}  // namespace parfait::formats
