#include "plan/part_cut.h"

#include "base/checked.h"
#include "formats/common.h"
#include "formats/mxfp8/layout.h"
#include "formats/nvfp4/layout.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::plan {
namespace {

enum class Axis { none, outputs, inputs };

// A part as a matrix whose rows, or columns, follow the layer's outputs or inputs.
struct Lie {
  Axis rows = Axis::none, columns = Axis::none;
  std::uint64_t row_count = 1, used = 1;
};

bool has_block_scales(const formats::Layer& layer) {
  return layer.format->folder == "nvfp4" || layer.format->folder == "mxfp8";
}

// Rows of the weight as it is stored, padding included.
std::uint64_t stored_rows(const formats::Layer& layer) {
  return has_block_scales(layer) ? layer.part("weight")->shape[0] : layer.rows;
}

Lie lie_of(const formats::Layer& layer, const formats::Part& part) {
  const TensorInfo& tensor = *part.tensor;
  const std::uint64_t values = checked_product(tensor.shape).value_or(0);
  const std::uint64_t groups = layer.scale_group ? layer.columns / layer.scale_group : 0;
  const auto is_shape = [&](std::uint64_t a, std::uint64_t b) {
    return tensor.shape.size() == 2 && tensor.shape[0] == a && tensor.shape[1] == b;
  };
  if (part.role == "weight") return {Axis::outputs, Axis::inputs, stored_rows(layer), layer.rows};
  if (part.role == "pre_quant_scale")
    return {Axis::inputs, Axis::none, layer.columns, layer.columns};
  if (part.role == "bias" || part.role == "weight_s_channel")
    return {Axis::outputs, Axis::none, layer.rows, layer.rows};
  if (part.role == "weight_s_rel") return {Axis::outputs, Axis::inputs, layer.rows, layer.rows};
  if (part.role == "weight_correction" || part.role == "weight_zeros")
    return {Axis::inputs, Axis::outputs, groups, groups};
  if (part.role != "weight_scale" || values <= 1) return {};
  if (layer.format->folder == "awq_w4a16" && is_shape(groups, layer.rows))
    return {Axis::inputs, Axis::outputs, groups, groups};
  if (values == layer.rows) return {Axis::outputs, Axis::none, layer.rows, layer.rows};
  return {};
}

// Swizzled block scales. Their rows go to other tiles; columns are cut between tiles only, which
// then move whole.
PartCut cut_of_blocks(const formats::Layer& layer, SplitAxis split) {
  const formats::BlockScales scales{stored_rows(layer), layer.columns / layer.scale_group};
  PartCut cut;
  if (split == SplitAxis::outputs) {
    cut = {Cut::tiles, scales.rows, layer.rows, 1, {scales.columns}};
  } else {
    const std::uint64_t bands = scales.stored_rows() / scales.tile_rows;
    cut = {Cut::columns, bands, bands, 1, {scales.stored_columns() * scales.tile_rows}};
  }
  return cut;
}

}  // namespace

std::string_view cut_name(Cut cut) {
  constexpr std::string_view names[] = {"none", "rows", "columns", "tiles", "first rank"};
  return names[static_cast<int>(cut)];
}

PartCut cut_of(const formats::Layer& layer, SplitAxis split, const formats::Part& part) {
  PartCut cut;
  if (split != SplitAxis::outputs && split != SplitAxis::inputs) return cut;
  if (part.role == "bias" && split == SplitAxis::inputs) {
    cut.cut = Cut::first_rank;
    return cut;
  }
  const bool blocks = part.role == "weight_scale" && has_block_scales(layer);
  if (blocks) {
    cut = cut_of_blocks(layer, split);
  } else {
    const Lie lie = lie_of(layer, part);
    const Axis axis = split == SplitAxis::outputs ? Axis::outputs : Axis::inputs;
    if (lie.row_count == 0 || (lie.rows != axis && lie.columns != axis)) return cut;
    cut = {lie.rows == axis ? Cut::rows : Cut::columns, lie.row_count, lie.used, 1, {}};
    if (cut.cut == Cut::columns) cut.used = cut.rows;
    const std::uint64_t row_bytes = part.tensor->bytes / lie.row_count;
    if (part.role == "weight" && layer.format->folder == "w6a8_int8")
      cut.planes = {W6A8Weight::high_plane(layer.columns),
                    row_bytes - W6A8Weight::high_plane(layer.columns)};
    else
      cut.planes = {row_bytes};
  }
  if (split == SplitAxis::outputs && cut.used != cut.rows)
    cut.pad = layer.format->folder == "nvfp4" ? Nvfp4Weight::row_padding : Mxfp8Weight::row_padding;
  return cut;
}

std::vector<Range> scaled(const std::vector<Range>& share, std::uint64_t length,
                          std::uint64_t count) {
  std::vector<Range> out;
  for (const Range& range : share)
    out.push_back({range.begin * count / length, range.end * count / length});
  return out;
}

}  // namespace parfait::plan
