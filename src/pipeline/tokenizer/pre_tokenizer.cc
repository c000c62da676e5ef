#include "pipeline/tokenizer/pre_tokenizer.h"

#include <utf8proc.h>

#include <cstdint>

namespace parfait::pipeline {
namespace {

enum class Kind : std::uint8_t { letter, number, space, other };

struct CodePoint {
  std::uint32_t value;
  Kind kind;
  std::size_t begin;  // byte
};

bool is_white_space(std::uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

Kind kind_of(std::uint32_t c) {
  if (is_white_space(c)) return Kind::space;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return Kind::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return Kind::number;
    default:
      return Kind::other;
  }
}

class Scanner {
 public:
  explicit Scanner(std::string_view text) {
    const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
    for (std::size_t at = 0; at < text.size();) {
      utf8proc_int32_t c = 0;
      const auto length =
          utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
      const auto value = static_cast<std::uint32_t>(c);
      points_.push_back({value, kind_of(value), at});
      at += length > 0 ? static_cast<std::size_t>(length) : 1;
    }
  }

  std::size_t size() const { return points_.size(); }
  std::size_t byte(std::size_t i) const { return points_[i].begin; }

  // The end of the piece that begins at i.
  std::size_t piece_end(std::size_t i) const {
    if (const std::size_t end = contraction_end(i)) return end;
    if (is(i, Kind::letter)) return run_end(i, Kind::letter);
    if (!is(i, Kind::number) && !is_newline(i) && is(i + 1, Kind::letter))
      return run_end(i + 1, Kind::letter);
    if (is(i, Kind::number)) return i + 1;
    const std::size_t symbols = points_[i].value == ' ' ? i + 1 : i;
    if (is(symbols, Kind::other)) {
      std::size_t end = run_end(symbols, Kind::other);
      while (is_newline(end)) ++end;
      return end;
    }
    // White space: up to its last line break; else all but the last before something else.
    const std::size_t end = run_end(i, Kind::space);
    for (std::size_t last = end; last > i; --last)
      if (is_newline(last - 1)) return last;
    return end < size() && end - i > 1 ? end - 1 : end;
  }

 private:
  bool is(std::size_t i, Kind kind) const { return i < size() && points_[i].kind == kind; }
  bool is_newline(std::size_t i) const {
    return i < size() && (points_[i].value == '\r' || points_[i].value == '\n');
  }
  std::size_t run_end(std::size_t i, Kind kind) const {
    while (is(i, kind)) ++i;
    return i;
  }
  // Lower case of the letters that contractions have; 0 for anything else.
  char folded(std::size_t i) const {
    if (i >= size()) return 0;
    const std::uint32_t c = points_[i].value;
    if (c == 0x17f) return 's';
    if (c >= 'A' && c <= 'Z') return static_cast<char>(c - 'A' + 'a');
    return c >= 'a' && c <= 'z' ? static_cast<char>(c) : '\0';
  }
  std::size_t contraction_end(std::size_t i) const {
    if (points_[i].value != '\'') return 0;
    const char a = folded(i + 1), b = folded(i + 2);
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return i + 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return i + 3;
    return 0;
  }

  std::vector<CodePoint> points_;
};

}  // namespace

const std::string_view qwen_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

std::vector<std::string_view> pre_tokenize(std::string_view text) {
  const Scanner scanner(text);
  std::vector<std::string_view> pieces;
  for (std::size_t i = 0; i < scanner.size();) {
    const std::size_t end = scanner.piece_end(i);
    const std::size_t first = scanner.byte(i),
                      last = end < scanner.size() ? scanner.byte(end) : text.size();
    pieces.push_back(text.substr(first, last - first));
    i = end;
  }
  return pieces;
}

}  // namespace parfait::pipeline
