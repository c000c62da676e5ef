#include "cli/table.h"

#include <algorithm>

namespace parfait::cli {

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_)
    column.width = std::max(column.width, display_width(column.title));
}

void Table::print(Output& out) {
  for (const Row& row : rows_)
    for (std::size_t i = 0; i < row.size(); ++i)
      columns_[i].width = std::max(columns_[i].width, display_width(row[i].text));
  print_titles(out);
  for (const Row& row : rows_) print_row(out, row);
}

void Table::print_titles(Output& out) const {
  Row titles;
  for (const Column& column : columns_) titles.push_back(Cell(column.title, Style::bold));
  print_row(out, titles);
}

void Table::print_row(Output& out, const Row& row) const {
  std::string line;
  std::size_t owed = 0;  // spaces that only a later cell makes visible
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t used = display_width(row[i].text);
    const std::size_t padding = columns_[i].width > used ? columns_[i].width - used : 0;
    if (i) owed += 2;
    if (columns_[i].align == Align::right) owed += padding;
    if (used) {
      line.append(owed, ' ');
      line += out.paint(row[i].style, row[i].text);
      owed = 0;
    }
    if (columns_[i].align == Align::left) owed += padding;
  }
  line += '\n';
  out.write(line);
}

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

std::string grouped(std::uint64_t number) {
  std::string digits = std::to_string(number);
  for (std::size_t i = digits.size(); i > 3; i -= 3) digits.insert(i - 3, ",");
  return digits;
}

std::string millions(std::uint64_t number) {
  if (number < 1'000'000) return grouped(number);
  return fmt::format("{:.2f} M", static_cast<double>(number) / 1e6);
}

std::string counted(std::uint64_t number, std::string_view noun) {
  return fmt::format("{} {}{}", grouped(number), noun, number == 1 ? "" : "s");
}

}  // namespace parfait::cli
