// Aligned tables of text: numbers to the right, nothing ever cut, no padding at the end of a line.
#ifndef PARFAIT_CLI_TABLE_H_
#define PARFAIT_CLI_TABLE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/output.h"

namespace parfait::cli {

enum class Align { left, right };
struct Column {
  std::string title;
  Align align = Align::left;
  std::size_t width = 0;  // at least this wide: for rows that are printed as they come
};

struct Cell {
  Cell(std::string t, Style s = Style::plain) : text(std::move(t)), style(s) {}
  Cell(std::string_view t) : text(t) {}
  Cell(const char* t) : text(t) {}
  std::string text;
  Style style = Style::plain;
};
using Row = std::vector<Cell>;

class Table {
 public:
  explicit Table(std::vector<Column> columns);
  void add(Row row) { rows_.push_back(std::move(row)); }
  bool empty() const { return rows_.empty(); }
  // Title and all rows, each column as wide as its widest cell.
  void print(Output& out);

  // For rows that are printed as they come, in the widths that the columns were given.
  void print_titles(Output& out) const;
  void print_row(Output& out, const Row& row) const;

 private:
  std::vector<Column> columns_;
  std::vector<Row> rows_;
};

// The columns that a text takes on a terminal: one for each code point.
std::size_t display_width(std::string_view text);

// 1234567 → "1,234,567".
std::string grouped(std::uint64_t number);
// Weights: "5.69 M", or all digits where they are few.
std::string millions(std::uint64_t number);
// "1 layer", "3 layers".
std::string counted(std::uint64_t number, std::string_view noun);

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_TABLE_H_
