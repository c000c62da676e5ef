// A format as a set of representable rows: what scales a row may have, and which values a column
// may take under them. This is all that better encodings need to know of a format.
//
// With w a row in the basis in which it is stored (rotated, where the format rotates), energy[k]
// the weight of column k's squared error:
//
//   fit      scales and codes that make Σ energy[k]·(w[k] - value[k])² small, each code the nearest
//   nearest  the code whose value under the scales of a fit is nearest, of one column
//   store    the row's bytes, as the format's own encoder lays them out
//
// Grids are immutable; any thread may call anything.
#ifndef PARFAIT_CONVERT_BEST_GRID_H_
#define PARFAIT_CONVERT_BEST_GRID_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "convert/best/best.h"

namespace parfait::convert {

struct RowFit {
  float scale = 0;                   // the row's, or the tensor's
  std::vector<std::uint8_t> groups;  // bytes of the groups' scales, where there are groups
  std::vector<std::uint8_t> codes;   // one a column, not yet packed
};

using Row = std::span<const float>;

class Grid {
 public:
  virtual ~Grid() = default;
  virtual void fit(Row w, Row energy, RowFit& row) const = 0;
  // Sets the column's code and returns its value.
  virtual float nearest(float w, std::uint64_t column, RowFit& row) const = 0;
  virtual float value(std::uint64_t column, const RowFit& row) const = 0;  // of the column's code
  virtual void store(const RowFit& row, std::uint64_t index,
                     const formats::EncodeBuffers& buffers) const = 0;
};

// The grid of a layer; null where its format has none.
std::unique_ptr<Grid> make_grid(const BestLayer& layer, const BestSurvey& survey);

// One file each: one scale a row (int8_tensorwise, convrot_w4a4); one scale for the tensor
// (int8_tensorwise, float8_*); relative scales (asym_w4a8_int8, w6a8_int8); block scales (nvfp4,
// mxfp8).
std::unique_ptr<Grid> row_grid(const BestLayer& layer);
std::unique_ptr<Grid> tensor_grid(const BestLayer& layer, float scale);
std::unique_ptr<Grid> relative_grid(const BestLayer& layer,
                                    const std::optional<std::array<float, 16>>& codebook);
std::unique_ptr<Grid> block_grid(const BestLayer& layer, float scale);

std::uint64_t scale_group_of(const BestLayer& layer);  // the settings', or the format's default

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_GRID_H_
