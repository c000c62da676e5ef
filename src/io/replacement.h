// A file that is written whole or not at all: its bytes go to a temporary beside the target, which
// is synced and then renamed over it. On any error, or if finish() is never called, the temporary
// is removed and the target is untouched.
#ifndef PARFAIT_IO_REPLACEMENT_H_
#define PARFAIT_IO_REPLACEMENT_H_

#include <sys/types.h>

#include <filesystem>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "parfait/error.h"

namespace parfait::io {

// Follows links, so that what a link points to is replaced and not the link. Only a file may be
// replaced: a rename over a device or a pipe would take its place. The permissions of the file that
// is there, if one is.
Result<std::optional<mode_t>> resolve_target(std::filesystem::path& target,
                                             const std::string& name);
// Makes a new name in the file's folder durable; a folder that cannot be synced is left at that.
void sync_folder(const std::filesystem::path& file);

class Replacement {
 public:
  static Result<Replacement> create(const std::filesystem::path& target);
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
