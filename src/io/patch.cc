#include "io/patch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "base/result.h"
#include "io/replacement.h"

namespace parfait::io {
namespace {

// The journal: magic, old size, new size, number of parts; for each part its offset, how many bytes
// it has, how many of them the file had before, the old bytes, the new ones; at the end a checksum
// of all before it. Numbers are 8 bytes, little-endian.
constexpr std::uint64_t magic = 0x3152504552465250;  // "PRFREPR1"
constexpr std::uint64_t number_bytes = 8;
constexpr std::uint64_t max_journal_bytes = std::uint64_t{1} << 30;

std::uint64_t checksum(ByteSpan bytes) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325;
  for (std::byte b : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3;
  return hash;
}

Error failure(const std::filesystem::path& file, std::string_view what) {
  return make_error(ErrorCode::file_write, "{}: {}: {}", printable(file.string(), 1000), what,
                    std::generic_category().message(errno));
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

bool write_at(int fd, std::uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return true;
}

bool read_at(int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) errno = EIO;
    if (done <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return true;
}

struct OldPart {
  std::uint64_t offset = 0;
  std::vector<std::byte> old_bytes, new_bytes;
};
struct Journal {
  std::vector<OldPart> parts;
  std::uint64_t old_size = 0, new_size = 0;
};

std::vector<std::byte> to_bytes(const Journal& journal) {
  std::vector<std::byte> out;
  const auto number = [&](std::uint64_t value) {
    out.resize(out.size() + number_bytes);
    std::memcpy(out.data() + out.size() - number_bytes, &value, number_bytes);
  };
  number(magic);
  number(journal.old_size);
  number(journal.new_size);
  number(journal.parts.size());
  for (const OldPart& part : journal.parts) {
    number(part.offset);
    number(part.new_bytes.size());
    number(part.old_bytes.size());
    out.insert(out.end(), part.old_bytes.begin(), part.old_bytes.end());
    out.insert(out.end(), part.new_bytes.begin(), part.new_bytes.end());
  }
  number(checksum(out));
  return out;
}

// Empty where the bytes are not a whole journal: its writer was stopped.
std::optional<Journal> from_bytes(ByteSpan bytes) {
  if (bytes.size() < 5 * number_bytes) return std::nullopt;
  const ByteSpan body = bytes.first(bytes.size() - number_bytes);
  std::uint64_t sum;
  std::memcpy(&sum, bytes.data() + body.size(), number_bytes);
  if (sum != checksum(body)) return std::nullopt;
  std::size_t at = 0;
  const auto number = [&](std::uint64_t& value) {
    if (body.size() - at < number_bytes) return false;
    std::memcpy(&value, body.data() + at, number_bytes);
    at += number_bytes;
    return true;
  };
  const auto take = [&](std::uint64_t count, std::vector<std::byte>& out) {
    if (body.size() - at < count) return false;
    out.assign(body.begin() + static_cast<std::ptrdiff_t>(at),
               body.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
    return true;
  };
  Journal journal;
  std::uint64_t first = 0, parts = 0;
  if (!number(first) || first != magic || !number(journal.old_size) || !number(journal.new_size) ||
      !number(parts))
    return std::nullopt;
  for (std::uint64_t i = 0; i < parts; ++i) {
    OldPart part;
    std::uint64_t new_count = 0, old_count = 0;
    if (!number(part.offset) || !number(new_count) || !number(old_count) || old_count > new_count ||
        !take(old_count, part.old_bytes) || !take(new_count, part.new_bytes))
      return std::nullopt;
    journal.parts.push_back(std::move(part));
  }
  if (at != body.size()) return std::nullopt;
  return journal;
}

struct Opened {
  int fd = -1;
  std::uint64_t size = 0;
  mode_t mode = 0;
};
// For reading and writing, locked. A link is followed, so that its file is what is changed.
Result<Opened> open_locked(const std::filesystem::path& file) {
  Opened opened;
  opened.fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  if (opened.fd < 0) return failure(file, "cannot be opened for writing");
  struct stat status;
  if (::flock(opened.fd, LOCK_EX | LOCK_NB) != 0 || ::fstat(opened.fd, &status) != 0) {
    ::close(opened.fd);
    return make_error(ErrorCode::file_write, "{}: another process is repairing it at this moment",
                      printable(file.string(), 1000));
  }
  opened.size = static_cast<std::uint64_t>(status.st_size);
  opened.mode = status.st_mode & 07777;
  return opened;
}

Result<Done> write_journal(const std::filesystem::path& path, const Journal& journal, mode_t mode,
                           const PatchOptions& options) {
  const std::vector<std::byte> bytes = to_bytes(journal);
  const Descriptor out(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (out.get() < 0) return failure(path, "the journal cannot be created");
  ::fchmod(out.get(), mode & 0666);
  const std::size_t half = bytes.size() / 2;
  bool good = write_at(out.get(), 0, ByteSpan(bytes).first(half));
  if (good && options.hook) options.hook(PatchStep::journal_begun);
  good =
      good && write_at(out.get(), half, ByteSpan(bytes).subspan(half)) && ::fsync(out.get()) == 0;
  if (!good) {
    Error error = failure(path, "the journal cannot be written");
    ::unlink(path.c_str());
    return error;
  }
  sync_folder(path);
  if (options.hook) options.hook(PatchStep::journal_done);
  return Done{};
}

// The new bytes, in pieces; false with errno set where one cannot be written.
bool write_parts(int fd, const Journal& journal, const PatchOptions& options) {
  for (const OldPart& part : journal.parts) {
    for (std::uint64_t at = 0; at < part.new_bytes.size(); at += options.piece) {
      const std::uint64_t count = std::min(options.piece, part.new_bytes.size() - at);
      if (!write_at(fd, part.offset + at, ByteSpan(part.new_bytes).subspan(at, count)))
        return false;
      if (options.hook) options.hook(PatchStep::part_begun);
    }
  }
  if (options.hook) options.hook(PatchStep::parts_done);
  if (::ftruncate(fd, static_cast<off_t>(journal.new_size)) != 0) return false;
  if (options.hook) options.hook(PatchStep::sized);
  return ::fsync(fd) == 0;
}

bool put_back(int fd, const Journal& journal) {
  for (const OldPart& part : journal.parts)
    if (!write_at(fd, part.offset, part.old_bytes)) return false;
  return ::ftruncate(fd, static_cast<off_t>(journal.old_size)) == 0 && ::fsync(fd) == 0;
}

// Room for what the file grows by, before anything is touched.
bool reserve(int fd, const Journal& journal) {
  if (journal.new_size <= journal.old_size) return true;
  int reserved = 0;
  do
    reserved = ::fallocate(fd, FALLOC_FL_KEEP_SIZE, static_cast<off_t>(journal.old_size),
                           static_cast<off_t>(journal.new_size - journal.old_size));
  while (reserved != 0 && errno == EINTR);
  if (reserved != 0 && errno != EOPNOTSUPP && errno != ENOSYS) return false;
  // A limit on a file's size shows only when it is reached.
  return ::ftruncate(fd, static_cast<off_t>(journal.new_size)) == 0;
}

Result<Journal> copy_old_bytes(int fd, const std::filesystem::path& file, const Patch& patch) {
  Journal journal{{}, patch.old_size, patch.new_size};
  for (const PatchPart& part : patch.parts) {
    OldPart old{part.offset, {}, part.bytes};
    if (part.offset < patch.old_size)
      old.old_bytes.resize(
          std::min<std::uint64_t>(part.bytes.size(), patch.old_size - part.offset));
    if (!read_at(fd, part.offset, old.old_bytes)) return failure(file, "cannot be read");
    journal.parts.push_back(std::move(old));
  }
  return journal;
}

Result<std::optional<Journal>> read_journal(const std::filesystem::path& path) {
  const Descriptor in(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status;
  if (in.get() < 0 || ::fstat(in.get(), &status) != 0)
    return failure(path, "the journal cannot be read");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || size > max_journal_bytes)
    return make_error(ErrorCode::file_write,
                      "{}: is not a journal that this program wrote, and in its place",
                      printable(path.string(), 1000));
  std::vector<std::byte> bytes(size);
  if (!read_at(in.get(), 0, bytes)) return failure(path, "the journal cannot be read");
  return from_bytes(bytes);
}

// Whether the file can be what a process left that stopped while it wrote these parts.
bool is_of_file(int fd, std::uint64_t size, const Journal& journal) {
  const auto [least, most] = std::minmax(journal.old_size, journal.new_size);
  if (size < least || size > most) return false;
  for (const OldPart& part : journal.parts) {
    if (part.offset >= size) continue;
    std::vector<std::byte> there(
        std::min<std::uint64_t>(part.new_bytes.size(), size - part.offset));
    if (!read_at(fd, part.offset, there)) return false;
    for (std::size_t i = 0; i < there.size(); ++i) {
      const std::byte old = i < part.old_bytes.size() ? part.old_bytes[i] : std::byte{0};
      if (there[i] != old && there[i] != part.new_bytes[i]) return false;
    }
  }
  return true;
}

std::filesystem::path followed(const std::filesystem::path& file) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(file, error);
  return error ? file : real;
}

}  // namespace

std::filesystem::path patch_journal(const std::filesystem::path& file) {
  std::filesystem::path path = followed(file);
  path += ".repair";
  return path;
}

Result<Done> apply_patch(const std::filesystem::path& file, const Patch& patch,
                         ByteSpan expected_start, const PatchOptions& options) {
  PARFAIT_TRY(const Opened opened, open_locked(file));
  const Descriptor fd(opened.fd);
  std::vector<std::byte> start(std::min<std::uint64_t>(expected_start.size(), opened.size));
  if (!read_at(fd.get(), 0, start)) return failure(file, "cannot be read");
  if (opened.size != patch.old_size || !std::ranges::equal(start, expected_start))
    return make_error(ErrorCode::file_write,
                      "{}: was changed by another program since it was looked at; nothing was "
                      "written",
                      printable(file.string(), 1000));
  PARFAIT_TRY(const Journal journal, copy_old_bytes(fd.get(), file, patch));
  const std::filesystem::path path = patch_journal(file);
  PARFAIT_CHECK_OK(write_journal(path, journal, opened.mode, options));
  if (!reserve(fd.get(), journal) || !write_parts(fd.get(), journal, options)) {
    Error error = failure(file, "cannot be written");
    if (put_back(fd.get(), journal)) {
      ::unlink(path.c_str());
      error.message += "; it is as it was";
    } else {
      error.message += fmt::format("; {} holds what `parfait repair --write` needs to finish",
                                   printable(path.string(), 1000));
    }
    return error;
  }
  ::unlink(path.c_str());
  sync_folder(path);
  return Done{};
}

PatchState find_patch(const std::filesystem::path& file) {
  struct stat status;
  return ::lstat(patch_journal(file).c_str(), &status) == 0 ? PatchState::interrupted
                                                            : PatchState::none;
}

Result<Done> finish_patch(const std::filesystem::path& file) {
  const std::filesystem::path path = patch_journal(file);
  PARFAIT_TRY(const Opened opened, open_locked(file));
  const Descriptor fd(opened.fd);
  PARFAIT_TRY(const std::optional<Journal> journal, read_journal(path));
  if (journal) {
    if (!is_of_file(fd.get(), opened.size, *journal))
      return make_error(ErrorCode::file_write,
                        "{}: the journal {} of an interrupted repair is not of this file, which "
                        "was replaced since; remove the journal",
                        printable(file.string(), 1000), printable(path.string(), 1000));
    if (!reserve(fd.get(), *journal) || !write_parts(fd.get(), *journal, {}))
      return failure(file, "an interrupted repair cannot be finished");
  }
  ::unlink(path.c_str());
  sync_folder(path);
  return Done{};
}

}  // namespace parfait::io
