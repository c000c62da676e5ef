#include "io/new_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/result.h"
#include "io/replacement.h"

namespace parfait::io {
namespace {

namespace fs = std::filesystem;

std::string reason() { return std::generic_category().message(errno); }

// Refuses a folder that holds anything else than the names, and whatever is no folder.
Result<Done> check_old(const fs::path& folder, const std::string& name,
                       const std::vector<std::string>& replaceable) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) return Done{};
  if (!fs::is_directory(status))
    return make_error(ErrorCode::file_write, "{}: is a file, where a folder is to be written",
                      name);
  if (fs::equivalent(folder, ".", error))
    return make_error(ErrorCode::file_write,
                      "{}: is the current folder; name a new or empty folder to write", name);
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string entry = it->path().filename().string();
    if (std::ranges::find(replaceable, entry) != replaceable.end()) continue;
    return make_error(ErrorCode::file_write,
                      "{}: is not empty (it holds {}); name a new or empty folder to write", name,
                      printable(entry));
  }
  if (error)
    return make_error(ErrorCode::file_write, "{}: cannot be listed: {}", name, error.message());
  return Done{};
}

}  // namespace

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      name_(std::move(other.name_)) {}

NewFolder::~NewFolder() {
  std::error_code ignored;
  if (!temporary_.empty()) fs::remove_all(temporary_, ignored);
}

Result<NewFolder> NewFolder::create(const fs::path& target,
                                    const std::vector<std::string>& replaceable) {
  NewFolder folder;
  folder.name_ = printable(target.string(), 1000);
  std::error_code error;
  folder.target_ = fs::weakly_canonical(fs::absolute(target), error);
  // "out/" is "out".
  if (!error && !folder.target_.has_filename()) folder.target_ = folder.target_.parent_path();
  if (error || !folder.target_.has_filename())
    return make_error(ErrorCode::file_write, "{}: no folder can be written there", folder.name_);
  PARFAIT_CHECK_OK(check_old(folder.target_, folder.name_, replaceable));
  static std::atomic<unsigned> counter{0};
  std::string temporary;
  int made = -1;
  for (int attempt = 0; attempt < 100; ++attempt) {
    temporary = fmt::format("{}.partial-{}-{}", folder.target_.string(), ::getpid(), counter++);
    made = ::mkdir(temporary.c_str(), 0777);
    if (made == 0 || errno != EEXIST) break;
  }
  if (made != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", folder.name_, reason());
  folder.temporary_ = temporary;
  // Whoever could not look into the old folder cannot look into this.
  struct stat status;
  if (::stat(folder.target_.c_str(), &status) == 0)
    ::chmod(temporary.c_str(), status.st_mode & 07777);
  return folder;
}

Result<Done> NewFolder::finish() {
  sync_folder(temporary_ / "x");
  // Onto nothing or an empty folder; or in exchange for the old one, which then goes.
  if (::rename(temporary_.c_str(), target_.c_str()) == 0) {
    temporary_.clear();
  } else if ((errno != ENOTEMPTY && errno != EEXIST) ||
             ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, target_.c_str(),
                         RENAME_EXCHANGE) != 0) {
    return make_error(ErrorCode::file_write, "{}: cannot be put in place: {}", name_, reason());
  } else {
    std::error_code ignored;
    fs::remove_all(std::exchange(temporary_, {}), ignored);
  }
  sync_folder(target_);
  return Done{};
}

}  // namespace parfait::io
