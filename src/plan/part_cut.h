// How the bytes of a layer's parts follow a split of the layer: what byte_ranges and the sharder
// share. Knows where each format's companions have the layer's outputs and inputs.
#ifndef PARFAIT_PLAN_PART_CUT_H_
#define PARFAIT_PLAN_PART_CUT_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "parfait/plan.h"

namespace parfait::plan {

enum class Cut {
  none,        // every rank holds all of it
  rows,        // a rank holds some of its rows
  columns,     // a rank holds some bytes of each row
  tiles,       // block scales of a layer cut by outputs: a rank's rows, in tiles of its own
  first_rank,  // a bias that is to be added once: the other ranks hold zeros
};
std::string_view cut_name(Cut cut);  // "first rank"

struct PartCut {
  Cut cut = Cut::none;
  std::uint64_t rows = 1;  // rows that the bytes are stored in; of tiles: of the weight
  std::uint64_t used = 1;  // of those, the ones that follow the axis; the rest is padding behind
  std::uint64_t pad = 1;   // a rank's rows are padded to a multiple of this
  // The bytes of a row, plane behind plane, each of which follows the columns: one, or two for
  // w6a8_int8. Of tiles: the block scales of a row.
  std::vector<std::uint64_t> planes;
};

PartCut cut_of(const formats::Layer& layer, SplitAxis split, const formats::Part& part);

// A share of an axis of `length`, as a share of `count` rows or bytes that follow it.
std::vector<Range> scaled(const std::vector<Range>& share, std::uint64_t length,
                          std::uint64_t count);

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_PART_CUT_H_
