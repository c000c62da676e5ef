#include "parfait/error.h"

#include <fmt/format.h>

#include <array>

#include "base/result.h"

namespace parfait {
namespace {

struct CodeText {
  std::string_view name, meaning;
};
constexpr CodeText code_texts[] = {
#define PARFAIT_ERROR(identifier, text, meaning) {text, meaning},
#include "parfait/errors.inc"
#undef PARFAIT_ERROR
};

// The length of the valid UTF-8 sequence that text starts with, or 0.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  if ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) > 0x9f) ||
      (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) > 0x8f))
    return 0;
  return length;
}

}  // namespace

std::string_view error_code_name(ErrorCode code) {
  return code_texts[static_cast<std::size_t>(code)].name;
}

std::string_view error_code_meaning(ErrorCode code) {
  return code_texts[static_cast<std::size_t>(code)].meaning;
}

std::string_view severity_name(Severity severity) {
  constexpr std::array<std::string_view, 3> names = {"note", "warning", "error"};
  return names[static_cast<std::size_t>(severity)];
}

std::string Finding::line() const {
  std::string text = fmt::format("{} {}: ", severity_name(severity), error_code_name(code));
  if (!file.empty()) text += printable(file, 1000) + ": ";
  if (!layer.empty()) text += printable(layer) + ": ";
  if (!tensor.empty() && tensor != layer) text += printable(tensor) + ": ";
  text += message;
  if (!got.empty()) text += fmt::format("; got {}", printable(got));
  if (!expected.empty()) text += fmt::format(", expected {}", printable(expected));
  return text;
}

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    if (out.size() >= most) return out + "...";
    const auto byte = static_cast<unsigned char>(text[i]);
    const std::size_t length = utf8_length(text.substr(i));
    const bool c1_control =
        length == 2 && byte == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    if (length == 0 || byte < 0x20 || byte == 0x7f || c1_control) {
      out += fmt::format("\\x{:02x}", byte);
      ++i;
    } else {
      out += text.substr(i, length);
      i += length;
    }
  }
  return out;
}

}  // namespace parfait
