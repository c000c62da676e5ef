// A file that is written whole or not at all: its bytes go to a temporary beside the target, which
// is synced and then renamed over it. On any error, or if finish() is never called, the temporary
// is removed and the target is untouched.
#ifndef PARFAIT_IO_REPLACEMENT_H_
#define PARFAIT_IO_REPLACEMENT_H_

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/bytes.h"
#include "parfait/error.h"

namespace parfait::io {

// Files of one kind begin alike.
struct FileKind {
  std::string_view name;  // "a PNG picture"
  std::size_t at = 0;     // where the mark stands
  std::string_view begins;
};
inline constexpr FileKind png_file{"a PNG picture", 0, "\x89PNG\r\n\x1a\n"};
inline constexpr FileKind safetensors_file{"a safetensors file", 8, "{"};
inline constexpr FileKind gguf_file{"a GGUF file", 0, "GGUF"};
inline constexpr FileKind json_file{"a JSON file", 0, "{"};
inline constexpr FileKind html_file{"an HTML page", 0, "<!DOCTYPE html"};

// A slip of the hand must not cost a file: what is there is replaced only if it is empty or of the
// kind that would take its place.
Result<Done> refuse_other_kind(const std::filesystem::path& target, const FileKind& kind);
// The same, and whether its folder takes files: before work whose result would have no place.
Result<Done> try_target(const std::filesystem::path& target, const FileKind& kind);

// Follows links, so that what a link points to is replaced and not the link. Only a file may be
// replaced: a rename over a device or a pipe would take its place. The permissions of the file that
// is there, if one is.
Result<std::optional<mode_t>> resolve_target(std::filesystem::path& target,
                                             const std::string& name);
// Makes a new name in the file's folder durable; a folder that cannot be synced is left at that.
void sync_folder(const std::filesystem::path& file);

class Replacement {
 public:
  static Result<Replacement> create(const std::filesystem::path& target, const FileKind& kind);
  Result<Done> append(ByteSpan bytes);
  Result<Done> finish();

  // From here on finish() refuses.
  void spoil() { failed_ = true; }
  bool failed() const { return failed_; }
  // The target's name, for messages.
  const std::string& name() const { return name_; }

  Replacement(Replacement&& other) noexcept;
  Replacement& operator=(Replacement&&) = delete;
  ~Replacement();

 private:
  Replacement() = default;

  std::filesystem::path target_, temporary_;
  std::string name_;
  int fd_ = -1;
  bool failed_ = false;  // the temporary is not what was asked for
};

}  // namespace parfait::io

#endif  // PARFAIT_IO_REPLACEMENT_H_
