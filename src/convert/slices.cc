#include "convert/slices.h"

#include <algorithm>
#include <numeric>

#include "base/checked.h"

namespace parfait::convert {
namespace {

using plan::Cut;

constexpr std::uint64_t most_padding = 128;

bool divides(const Shares& shares, std::uint64_t count) {
  for (const auto& ranges : shares.ranges) {
    for (const Range& range : ranges) {
      const auto begin = checked_mul(range.begin, count), end = checked_mul(range.end, count);
      if (!begin || !end || *begin % shares.length != 0 || *end % shares.length != 0) return false;
    }
  }
  return true;
}

}  // namespace

std::string Slices::objection(std::uint64_t bytes) const {
  if (cut.cut == Cut::none || cut.cut == Cut::first_rank) return {};
  if (!shares || cut.rows == 0 || cut.used > cut.rows || cut.pad == 0 || cut.planes.empty())
    return "its rows cannot be";
  // Padding is some rows. More would only be written to fill a disk.
  if (cut.pad > most_padding || cut.rows - cut.used >= most_padding)
    return "it has more rows of padding than any format";
  std::uint64_t row = 0;
  for (const std::uint64_t plane : cut.planes) {
    const auto sum = checked_add(row, plane);
    if (!sum || plane == 0 || *sum > bytes) return "the bytes of its rows cannot be";
    row = *sum;
  }
  if (cut.cut == Cut::tiles) {
    // Before anything is rounded up.
    const auto values = checked_mul(cut.rows, row);
    if (!values || *values > bytes || cut.planes.size() != 1 || tiles().stored_bytes() != bytes)
      return "the tensor is of another size";
  } else if (checked_mul(cut.rows, row) != bytes) {
    return "the tensor is of another size";
  }
  if (cut.cut == Cut::columns) {
    for (const std::uint64_t plane : cut.planes)
      if (!divides(*shares, plane)) return "the shares do not fall on whole bytes of a row";
  } else if (!divides(*shares, cut.used)) {
    return "the shares do not fall on whole rows";
  }
  return {};
}

std::uint64_t Slices::row_bytes() const {
  return std::accumulate(cut.planes.begin(), cut.planes.end(), std::uint64_t{0});
}

std::uint64_t Slices::rows_of(std::uint32_t rank) const {
  std::uint64_t rows = 0;
  for (const Range& range : plan::scaled(shares->ranges[rank], shares->length, cut.used))
    rows += range.size();
  return rows;
}

std::uint64_t Slices::stored_rows_of(std::uint32_t rank) const {
  return round_up(rows_of(rank), cut.pad);
}

std::vector<Slices::Piece> Slices::pieces_of(std::uint32_t rank) const {
  std::vector<Piece> pieces;
  std::uint64_t plane = 0;
  for (const std::uint64_t bytes : cut.planes) {
    for (const Range& range : plan::scaled(shares->ranges[rank], shares->length, bytes))
      pieces.push_back({plane + range.begin, range.size()});
    plane += bytes;
  }
  return pieces;
}

std::uint64_t Slices::bytes_of(std::uint32_t rank, std::uint64_t bytes) const {
  switch (cut.cut) {
    case Cut::none:
    case Cut::first_rank:
      return bytes;
    case Cut::rows:
      return stored_rows_of(rank) * row_bytes();
    case Cut::tiles:
      return tiles_of(rank).stored_bytes();
    case Cut::columns:
      break;
  }
  std::uint64_t row = 0;
  for (const Piece& piece : pieces_of(rank)) row += piece.bytes;
  return cut.rows * row;
}

std::vector<Slices::Run> Slices::runs() const {
  std::vector<Run> runs;
  for (std::uint32_t rank = 0; rank < shares->ranges.size(); ++rank) {
    std::uint64_t at = 0;
    for (const Range& range : plan::scaled(shares->ranges[rank], shares->length, cut.used)) {
      runs.push_back({range.begin, range.end, rank, at});
      at += range.size();
    }
  }
  std::ranges::sort(runs, {}, &Run::begin);
  return runs;
}

}  // namespace parfait::convert
