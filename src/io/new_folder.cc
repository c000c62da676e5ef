#include "io/new_folder.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

#include "base/digest.h"
#include "base/result.h"
#include "io/replacement.h"
#include "io/whole.h"

namespace parfait::io {
namespace {

namespace fs = std::filesystem;

std::string reason() { return std::generic_category().message(errno); }

std::string path_text(const fs::path& path) { return printable(path.string(), 1000); }

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

// The journal's one line; empty where there is none that we wrote.
constexpr std::string_view journal_words = "parfait folder ";

std::string journal_line(const std::string& fingerprint) {
  Digest digest;
  digest.add(std::as_bytes(std::span(fingerprint)));
  return fmt::format("{}{}\n", journal_words, digest.text());
}

std::string read_journal(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return "";
  std::string text(journal_line("").size() + 1, '\0');
  std::ifstream in(path, std::ios::binary);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text.starts_with(journal_words) ? text : "";
}

}  // namespace

// --- FolderFile ---

FolderFile::FolderFile(FolderFile&& other) noexcept
    : name_(std::move(other.name_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

FolderFile::~FolderFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<Done> FolderFile::write_at(std::uint64_t offset, ByteSpan bytes) {
  errno = write_whole(fd_, offset, bytes);
  if (errno != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be written: {}", name_, reason());
  return Done{};
}

Result<Done> FolderFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  errno = read_whole(fd_, offset, bytes);
  if (errno != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be read back: {}", name_, reason());
  return Done{};
}

Result<Done> FolderFile::finish(std::uint64_t bytes) {
  if (::ftruncate(fd_, static_cast<off_t>(bytes)) != 0 || ::fsync(fd_) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be written out: {}", name_, reason());
  ::close(std::exchange(fd_, -1));
  return Done{};
}

// --- NewFolder ---

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      journal_(std::move(other.journal_)),
      name_(std::move(other.name_)),
      lock_(std::exchange(other.lock_, -1)),
      left_(other.left_) {}

NewFolder::~NewFolder() {
  if (!temporary_.empty() && left_ == Left::removed) {
    std::error_code ignored;
    fs::remove_all(temporary_, ignored);
    ::unlink(journal_.c_str());
  }
  if (lock_ >= 0) ::close(lock_);
}

// Makes or takes over <target>.partial and locks it. temporary_ is set once it is known to be ours.
Result<Done> NewFolder::make_temporary() {
  fs::path temporary = target_, journal;
  temporary += ".partial";
  journal = temporary;
  journal += ".journal";
  if (::mkdir(temporary.c_str(), 0777) != 0 && errno != EEXIST)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", name_, reason());
  lock_ = ::open(temporary.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (lock_ < 0)
    return make_error(ErrorCode::file_write, "{}: {} is in the way: {}", name_,
                      path_text(temporary), reason());
  // Whoever held it may have put it in place or removed it just now.
  struct stat held, named;
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 || ::fstat(lock_, &held) != 0 ||
      ::lstat(temporary.c_str(), &named) != 0 || held.st_dev != named.st_dev ||
      held.st_ino != named.st_ino)
    return make_error(ErrorCode::file_write,
                      "{}: another process is writing it at this moment (it holds {})", name_,
                      path_text(temporary));
  std::error_code error;
  if (read_journal(journal).empty() && !fs::is_empty(temporary, error))
    return make_error(ErrorCode::file_write,
                      "{}: {} is in the way, and no earlier run left it there", name_,
                      path_text(temporary));
  temporary_ = temporary;
  journal_ = journal;
  return Done{};
}

Result<NewFolder> NewFolder::create(const fs::path& target,
                                    const std::vector<std::string>& replaceable,
                                    const std::string& fingerprint, Start start) {
  NewFolder folder;
  folder.name_ = path_text(target);
  std::error_code error;
  folder.target_ = fs::weakly_canonical(fs::absolute(target), error);
  // "out/" is "out".
  if (!error && !folder.target_.has_filename()) folder.target_ = folder.target_.parent_path();
  if (error || !folder.target_.has_filename())
    return make_error(ErrorCode::file_write, "{}: no folder can be written there", folder.name_);
  PARFAIT_CHECK_OK(check_old(folder.target_, folder.name_, replaceable));
  PARFAIT_CHECK_OK(folder.make_temporary());

  const std::string line = journal_line(fingerprint);
  if (start == Start::afresh || read_journal(folder.journal_) != line) {
    for (fs::directory_iterator it(folder.temporary_, error), end; !error && it != end;
         it.increment(error))
      fs::remove_all(it->path(), error);
    if (error)
      return make_error(ErrorCode::file_write, "{}: {} cannot be emptied: {}", folder.name_,
                        path_text(folder.temporary_), error.message());
  }
  const int fd =
      ::open(folder.journal_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
  const bool written =
      fd >= 0 && ::write(fd, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  const std::string why = reason();
  if (fd >= 0) ::close(fd);
  if (!written)
    return make_error(ErrorCode::file_write, "{}: its journal cannot be written: {}", folder.name_,
                      why);
  // Whoever could not look into the old folder cannot look into this.
  struct stat status;
  if (::stat(folder.target_.c_str(), &status) == 0)
    ::chmod(folder.temporary_.c_str(), status.st_mode & 07777);
  return folder;
}

Result<FolderFile> NewFolder::open(const std::string& name) const {
  FolderFile file(path_text(target_ / name));
  const fs::path path = temporary_ / name;
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  file.fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  struct stat status;
  if (file.fd_ < 0 || ::fstat(file.fd_, &status) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", file.name_, reason());
  file.size_ = static_cast<std::uint64_t>(status.st_size);
  return file;
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
  ::unlink(journal_.c_str());
  sync_folder(target_);
  return Done{};
}

}  // namespace parfait::io
