#include "plan/byte_ranges.h"

#include <algorithm>

#include "base/checked.h"

namespace parfait::plan {
namespace {

// How a part's bytes lie: as a matrix whose rows, or columns, follow the layer's outputs or inputs.
struct Lie {
  enum class Axis { none, outputs, inputs };
  Axis rows = Axis::none, columns = Axis::none;
  std::uint64_t row_count = 1;
};

Lie lie_of(const formats::Layer& layer, const formats::Part& part) {
  using Axis = Lie::Axis;
  const TensorInfo& tensor = *part.tensor;
  const std::uint64_t values = checked_product(tensor.shape).value_or(0);
  const std::uint64_t groups = layer.scale_group ? layer.columns / layer.scale_group : 0;
  const auto is_shape = [&](std::uint64_t a, std::uint64_t b) {
    return tensor.shape.size() == 2 && tensor.shape[0] == a && tensor.shape[1] == b;
  };
  if (part.role == "weight") return {Axis::outputs, Axis::inputs, layer.rows};
  if (part.role == "pre_quant_scale") return {Axis::inputs, Axis::none, layer.columns};
  if (part.role == "bias" || part.role == "weight_s_channel")
    return {Axis::outputs, Axis::none, layer.rows};
  if (part.role == "weight_s_rel") return {Axis::outputs, Axis::inputs, layer.rows};
  if (part.role == "weight_correction" || part.role == "weight_zeros")
    return {Axis::inputs, Axis::outputs, groups};
  if (part.role != "weight_scale" || values <= 1) return {};
  if (layer.format->folder == "awq_w4a16" && is_shape(groups, layer.rows))
    return {Axis::inputs, Axis::outputs, groups};
  if (values == layer.rows) return {Axis::outputs, Axis::none, layer.rows};
  return {};
}

// A share of an axis of `length` as a share of `count` equal rows or bytes of it.
std::vector<Range> scaled(const std::vector<Range>& share, std::uint64_t length,
                          std::uint64_t count) {
  std::vector<Range> out;
  for (const Range& range : share)
    out.push_back({range.begin * count / length, range.end * count / length});
  return out;
}

}  // namespace

std::vector<ByteRange> byte_ranges(const formats::Layer& layer, const LayerPlan& plan,
                                   std::uint32_t rank) {
  std::vector<ByteRange> ranges;
  for (const formats::Part& part : layer.parts) {
    const TensorInfo& tensor = *part.tensor;
    const Lie lie = lie_of(layer, part);
    const bool outputs = plan.split == SplitAxis::outputs;
    const Lie::Axis cut = plan.shares.empty() ? Lie::Axis::none
                          : outputs           ? Lie::Axis::outputs
                                              : Lie::Axis::inputs;
    const std::uint64_t length = outputs ? layer.rows : layer.columns;
    const auto add = [&](std::uint64_t begin, std::uint64_t end) {
      if (begin < end)
        ranges.push_back({tensor.shard, {tensor.offset + begin, tensor.offset + end}});
    };
    if (cut == Lie::Axis::none || (lie.rows != cut && lie.columns != cut)) {
      add(0, tensor.bytes);
      continue;
    }
    const std::uint64_t row_bytes = tensor.bytes / lie.row_count;
    if (lie.rows == cut) {
      for (const Range& rows : scaled(plan.shares[rank], length, lie.row_count))
        add(rows.begin * row_bytes, rows.end * row_bytes);
    } else {
      const std::vector<Range> columns = scaled(plan.shares[rank], length, row_bytes);
      for (std::uint64_t row = 0; row < lie.row_count; ++row)
        for (const Range& bytes : columns)
          add(row * row_bytes + bytes.begin, row * row_bytes + bytes.end);
    }
  }
  std::ranges::sort(ranges, {},
                    [](const ByteRange& r) { return std::pair(r.shard, r.bytes.begin); });
  std::vector<ByteRange> joined;
  for (const ByteRange& range : ranges) {
    if (!joined.empty() && joined.back().shard == range.shard &&
        joined.back().bytes.end == range.bytes.begin)
      joined.back().bytes.end = range.bytes.end;
    else
      joined.push_back(range);
  }
  return joined;
}

}  // namespace parfait::plan
