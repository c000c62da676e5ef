#include "convert/rank_check.h"

#include "base/result.h"
#include "formats/format.h"
#include "plan/state.h"

namespace parfait::convert {
namespace {

Error unsound(const std::filesystem::path& file, const std::string& why) {
  return make_error(ErrorCode::shard_rank, "{}: would not be a sound checkpoint: {}",
                    printable(file.filename().string()), why);
}

std::string layer_text(std::string_view format, std::uint64_t rows, std::uint64_t columns,
                       std::uint64_t rotate_group, std::uint64_t scale_group) {
  return fmt::format("{} {} × {}, rotation group {}, scale group {}", format, rows, columns,
                     rotate_group, scale_group);
}

}  // namespace

Result<Done> check_rank(const std::filesystem::path& file, const Plan& plan, std::uint32_t rank,
                        Compat compat) {
  const formats::Checkpoint& source = *plan.checked().checkpoint().state();
  // A rank's header is about as long as the source's.
  std::uint64_t header_bytes = 1 << 20;
  for (const container::Shard& shard : source.index->shards())
    header_bytes += 2 * shard.header_bytes;
  PARFAIT_TRY(container::TensorIndexPtr index,
              container::open_index(file, {.max_header_bytes = header_bytes}));
  PARFAIT_TRY(const auto written, formats::detect(std::move(index), {.compat = compat}));
  PARFAIT_TRY(const std::vector<Finding> findings, formats::check_layers(*written, {}));
  for (const Finding& finding : findings)
    if (finding.severity == Severity::error) return unsound(file, finding.line());
  for (std::size_t i = 0; i < source.layers.size(); ++i) {
    const formats::Layer& layer = source.layers[i];
    const LayerPlan& planned = plan.layers()[i];
    std::uint64_t rows = layer.rows, columns = layer.columns, mine = 0;
    if (!planned.shares.empty())
      for (const Range& range : planned.shares[rank]) mine += range.size();
    if (planned.split == SplitAxis::outputs) rows = mine;
    if (planned.split == SplitAxis::inputs) columns = mine;
    const std::string expected =
        layer_text(layer.format->name, rows, columns, layer.rotate_group, layer.scale_group);
    const formats::Layer* found = written->find(layer.name);
    const std::string got = found ? layer_text(found->format->name, found->rows, found->columns,
                                               found->rotate_group, found->scale_group)
                                  : "absent";
    if (got != expected)
      return unsound(file,
                     fmt::format("layer {} is {} there, expected {}; a marker would settle it",
                                 printable(layer.name), got, expected));
  }
  return Done{};
}

}  // namespace parfait::convert
