#include "plan/byte_ranges.h"

#include <algorithm>

#include "plan/part_cut.h"

namespace parfait::plan {

std::vector<ByteRange> byte_ranges(const formats::Layer& layer, const LayerPlan& plan,
                                   std::uint32_t rank) {
  std::vector<ByteRange> ranges;
  const std::uint64_t length = plan.split == SplitAxis::outputs ? layer.rows : layer.columns;
  for (const formats::Part& part : layer.parts) {
    const TensorInfo& tensor = *part.tensor;
    const auto add = [&](std::uint64_t begin, std::uint64_t end) {
      if (begin < end)
        ranges.push_back({tensor.shard, {tensor.offset + begin, tensor.offset + end}});
    };
    const PartCut cut = cut_of(layer, plan.split, part);
    const std::uint64_t row_bytes = tensor.bytes / cut.rows;
    switch (cut.cut) {
      case Cut::none:
      case Cut::tiles:
        add(0, tensor.bytes);
        break;
      case Cut::first_rank:
        if (rank == 0) add(0, tensor.bytes);
        break;
      case Cut::rows:
        for (const Range& rows : scaled(plan.shares[rank], length, cut.used))
          add(rows.begin * row_bytes, rows.end * row_bytes);
        break;
      case Cut::columns:
        for (std::uint64_t row = 0; row < cut.rows; ++row) {
          std::uint64_t plane = row * row_bytes;
          for (const std::uint64_t bytes : cut.planes) {
            for (const Range& range : scaled(plan.shares[rank], length, bytes))
              add(plane + range.begin, plane + range.end);
            plane += bytes;
          }
        }
        break;
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
