// A folder that appears with all of its files or not at all: they are written into a temporary
// beside the target, which is renamed into its place. If finish() is never called, the temporary
// is removed and the target is untouched.
#ifndef PARFAIT_IO_NEW_FOLDER_H_
#define PARFAIT_IO_NEW_FOLDER_H_

#include <filesystem>
#include <string>
#include <vector>

#include "parfait/error.h"

namespace parfait::io {

class NewFolder {
 public:
  // The target may be absent, an empty folder, or a folder that holds no other names than these,
  // which is then replaced. The current folder is refused, since whoever stands in it would stand
  // in the old one afterwards.
  static Result<NewFolder> create(const std::filesystem::path& target,
                                  const std::vector<std::string>& replaceable = {});
  // Where files go until finish().
  const std::filesystem::path& path() const { return temporary_; }
  Result<Done> finish();

  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder();

 private:
  NewFolder() = default;

  std::filesystem::path target_, temporary_;
  std::string name_;  // the target's, for messages
};

}  // namespace parfait::io

#endif  // PARFAIT_IO_NEW_FOLDER_H_
