// How one tensor of a checkpoint lies on tensor-parallel ranks: the geometry that sharding and
// merging share. Immutable; knows numbers only, so that merge needs no format to take a manifest at
// its word - after valid() has held the manifest's numbers against the tensor.
#ifndef PARFAIT_CONVERT_SLICES_H_
#define PARFAIT_CONVERT_SLICES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/common.h"
#include "plan/part_cut.h"

namespace parfait::convert {

// The split of one layer: ranges of an axis of `length` by rank.
struct Shares {
  std::uint64_t length = 0;
  std::vector<std::vector<Range>> ranges;
};

struct Slices {
  plan::PartCut cut;
  std::shared_ptr<const Shares> shares;  // null where nothing is cut

  // Why these numbers cannot be those of a tensor of `bytes` bytes; empty if they can.
  std::string objection(std::uint64_t bytes) const;

  // Bytes of a row; of tiles, block scales of a row.
  std::uint64_t row_bytes() const;
  // Rows and tiles: the rows that a rank holds, and as it stores them, padding included.
  std::uint64_t rows_of(std::uint32_t rank) const;
  std::uint64_t stored_rows_of(std::uint32_t rank) const;
  // Columns: the bytes of a row that a rank holds.
  struct Piece {
    std::uint64_t at = 0, bytes = 0;
  };
  std::vector<Piece> pieces_of(std::uint32_t rank) const;
  // Bytes of the tensor on a rank, where the whole tensor has `bytes`.
  std::uint64_t bytes_of(std::uint32_t rank, std::uint64_t bytes) const;

  // Rows and tiles: all rows in use, as runs that lie on one rank, in the tensor's order.
  struct Run {
    std::uint64_t begin = 0, end = 0;  // rows of the tensor
    std::uint32_t rank = 0;
    std::uint64_t at = 0;  // its first row on the rank
  };
  std::vector<Run> runs() const;

  // Tiles: how they lie in the whole tensor, and on a rank.
  formats::BlockScales tiles() const { return {cut.rows, cut.planes[0]}; }
  formats::BlockScales tiles_of(std::uint32_t rank) const {
    return {stored_rows_of(rank), cut.planes[0]};
  }
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_SLICES_H_
