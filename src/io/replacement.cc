#include "io/replacement.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "base/result.h"

namespace parfait::io {
namespace {

// Writes all of the bytes, or fails.
Result<Done> write_all(int fd, ByteSpan bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      return make_error(ErrorCode::file_write, "{}: cannot be written: {}", name,
                        std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return Done{};
}

}  // namespace

Result<Done> refuse_other_kind(const std::filesystem::path& target, const FileKind& kind) {
  const int fd = ::open(target.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return Done{};  // nothing, or nothing that may be read: resolve_target() sees to it
  struct stat status;
  std::string start(kind.at + kind.begins.size(), '\0');
  const bool regular = ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
  const ssize_t bytes = regular ? ::pread(fd, start.data(), start.size(), 0) : 0;
  ::close(fd);
  if (bytes <= 0) return Done{};
  start.resize(static_cast<std::size_t>(bytes));
  if (start.size() > kind.at && start.substr(kind.at) == kind.begins) return Done{};
  return make_error(ErrorCode::file_write,
                    "{}: is there already and is not {}, so it is not replaced; the output needs "
                    "another name",
                    printable(target.string(), 1000), kind.name);
}

Result<Done> try_target(const std::filesystem::path& target, const FileKind& kind) {
  std::filesystem::path resolved = target;
  const std::string name = printable(target.string(), 1000);
  PARFAIT_CHECK_OK(resolve_target(resolved, name));
  PARFAIT_CHECK_OK(refuse_other_kind(resolved, kind));
  const std::filesystem::path folder = resolved.has_parent_path() ? resolved.parent_path() : ".";
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored))
    return make_error(ErrorCode::file_write, "{}: cannot be created: its folder does not exist",
                      name);
  std::string probe = (folder / ".parfait-XXXXXX").string();
  const int fd = ::mkstemp(probe.data());
  if (fd < 0)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", name,
                      std::generic_category().message(errno));
  ::close(fd);
  ::unlink(probe.c_str());
  return Done{};
}

Result<std::optional<mode_t>> resolve_target(std::filesystem::path& target,
                                             const std::string& name) {
  std::error_code error;
  if (std::filesystem::is_symlink(target, error)) {
    target = std::filesystem::weakly_canonical(target, error);
    if (error)
      return make_error(ErrorCode::file_write, "{}: is a link that leads nowhere: {}", name,
                        error.message());
  }
  struct stat status;
  if (::lstat(target.c_str(), &status) != 0) return std::optional<mode_t>();
  if (S_ISREG(status.st_mode)) return std::optional<mode_t>(status.st_mode & 07777);
  return make_error(ErrorCode::file_write, "{}: is {}, not a file that could be replaced", name,
                    S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
}

void sync_folder(const std::filesystem::path& file) {
  const std::filesystem::path folder = file.has_parent_path() ? file.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

Replacement::Replacement(Replacement&& other) noexcept
    : target_(std::move(other.target_)),
      temporary_(std::exchange(other.temporary_, {})),
      name_(std::move(other.name_)),
      fd_(std::exchange(other.fd_, -1)),
      failed_(other.failed_) {}

Replacement::~Replacement() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Result<Replacement> Replacement::create(const std::filesystem::path& target, const FileKind& kind) {
  Replacement file;
  file.target_ = target;
  file.name_ = printable(target.string(), 1000);
  PARFAIT_TRY(const std::optional<mode_t> old_mode, resolve_target(file.target_, file.name_));
  PARFAIT_CHECK_OK(refuse_other_kind(file.target_, kind));
  static std::atomic<unsigned> counter{0};
  std::string temporary;
  // Another name where a killed process of the same number left its temporary behind.
  for (int attempt = 0; attempt < 100; ++attempt) {
    temporary = fmt::format("{}.partial-{}-{}", file.target_.string(), ::getpid(), counter++);
    file.fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0 || errno != EEXIST) break;
  }
  if (file.fd_ < 0)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", file.name_,
                      std::generic_category().message(errno));
  file.temporary_ = temporary;
  if (old_mode)
    ::fchmod(file.fd_, *old_mode);  // whoever could not read the old file cannot read this
  return file;
}

Result<Done> Replacement::append(ByteSpan bytes) {
  auto written = write_all(fd_, bytes, name_);
  failed_ |= !written.ok();
  return written;
}

Result<Done> Replacement::finish() {
  if (failed_)
    return make_error(ErrorCode::file_write,
                      "{}: was not put in place because an earlier write to it failed", name_);
  if (::fsync(fd_) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be written out: {}", name_,
                      std::generic_category().message(errno));
  const int closed = ::close(std::exchange(fd_, -1));
  if (closed != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be put in place: {}", name_,
                      std::generic_category().message(errno));
  temporary_.clear();
  sync_folder(target_);
  return Done{};
}

}  // namespace parfait::io
