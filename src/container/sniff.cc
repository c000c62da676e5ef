// Files of other kinds that people open by mistake, recognised by their first bytes.

#include <algorithm>
#include <cctype>

#include "base/result.h"
#include "container/header.h"

namespace parfait::container {
namespace {

bool starts_with_nocase(std::string_view text, std::string_view prefix) {
  return text.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), text.begin(), [](char p, char t) {
           return p == std::tolower(static_cast<unsigned char>(t));
         });
}

std::string git_lfs_kind(std::string_view start) {
  constexpr std::string_view key = "\nsize ";
  const std::size_t at = start.find(key);
  if (at == std::string_view::npos)
    return "a Git LFS pointer; fetch the file itself with git lfs pull";
  std::string_view digits = start.substr(at + key.size());
  digits = digits.substr(0, std::min(digits.find_first_not_of("0123456789"), digits.size()));
  return fmt::format(
      "a Git LFS pointer to a file of {} bytes; fetch the file itself with git lfs pull",
      printable(digits, 20));
}

}  // namespace

std::string recognise_kind(std::string_view start) {
  if (start.starts_with("version https://git-lfs")) return git_lfs_kind(start);
  std::string_view text = start;
  text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n"), text.size()));
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  if (starts_with_nocase(text, "<!doctype") || starts_with_nocase(text, "<html") ||
      starts_with_nocase(text, "<?xml") || starts_with_nocase(text, "<head"))
    return "a web page, perhaps a login or licence page that was saved in the file's place";
  if (start.starts_with("PK\x03\x04"))
    return "a zip archive, as PyTorch's .pt, .pth and .ckpt files are; convert it to safetensors "
           "first";
  if (start.starts_with("\x80\x02") || start.starts_with("\x80\x04") ||
      start.starts_with("\x80\x05"))
    return "a Python pickle; convert it to safetensors first";
  if (start.starts_with("GGUF")) return "a GGUF file, which this program does not read";
  if (start.starts_with("\x1f\x8b")) return "a gzip archive; unpack it first";
  if (start.starts_with("7z\xbc\xaf")) return "a 7z archive; unpack it first";
  if (text.starts_with("{"))
    return "JSON; a shard index must be named *.safetensors.index.json to be opened as one";
  return {};
}

}  // namespace parfait::container
