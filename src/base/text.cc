#include "base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

namespace parfait {

bool glob_match(std::string_view pattern, std::string_view text) {
  std::size_t p = 0, t = 0;
  std::size_t star = std::string_view::npos, resume = 0;  // the last *, and where it ends in text
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++resume;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

namespace {

// Insertions, deletions and replacements that turn a into b; at least `limit` where it is not
// below.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if (a.size() > b.size() + limit || b.size() > a.size() + limit) return limit;
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
    if (*std::min_element(row.begin(), row.end()) >= limit) return limit;
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates) {
  if (name.size() > 500) return {};
  std::string_view best;
  std::size_t distance = std::max<std::size_t>(name.size() / 3, 2) + 1;
  for (std::string_view candidate :
       candidates.first(std::min<std::size_t>(candidates.size(), 100'000))) {
    const std::size_t d = edit_distance(name, candidate, distance);
    if (d >= distance) continue;
    distance = d;
    best = candidate;
  }
  return std::string(best);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1023.995 && unit + 1 < std::size(units)) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.2f} {}", value, units[unit]);
}

}  // namespace parfait
