#include "io/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <future>
#include <optional>
#include <system_error>
#include <utility>

#include "base/result.h"
#include "io/replacement.h"
#include "io/whole.h"

namespace parfait::io {
namespace {

std::string reason() { return std::generic_category().message(errno); }

// Journals are short lines; what is longer is not one.
constexpr std::uint64_t max_journal_bytes = std::uint64_t{64} << 20;

// How much work a loss of power may cost. Coarse, so that the disk is seldom waited for.
constexpr std::uint64_t sync_bytes = std::uint64_t{256} << 20;
constexpr std::chrono::seconds sync_time{5};

constexpr std::string_view boot_key = "#boot ", synced_key = "#synced ";

using Clock = std::chrono::steady_clock;

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::vector<std::string> lines;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return lines;
  std::string text;
  char buffer[65536];
  for (ssize_t n = 0; (n = ::read(fd, buffer, sizeof(buffer))) != 0;) {
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || text.size() > max_journal_bytes) break;
    text.append(buffer, static_cast<std::size_t>(n));
  }
  ::close(fd);
  // A line that was cut short says nothing.
  for (std::size_t begin = 0, end = 0; (end = text.find('\n', begin)) != std::string::npos;
       begin = end + 1)
    lines.push_back(text.substr(begin, end - begin));
  return lines;
}

// Another at each start of the machine; empty where the system does not tell.
std::string boot_id() {
  const std::vector<std::string> lines = read_lines("/proc/sys/kernel/random/boot_id");
  return lines.empty() ? "" : lines[0];
}

// What may be believed of a journal whose first line was read already.
struct Believed {
  std::vector<std::string> lines;
  std::size_t synced = 0;
};

Believed believe(std::span<const std::string> journal, const std::string& boot) {
  Believed found;
  bool same_boot = false;
  for (const std::string& line : journal) {
    if (line.starts_with(boot_key)) {
      same_boot = !boot.empty() && line.substr(boot_key.size()) == boot;
    } else if (line.starts_with(synced_key)) {
      std::size_t count = 0;
      std::from_chars(line.data() + synced_key.size(), line.data() + line.size(), count);
      found.synced = std::min(count, found.lines.size());
    } else {
      found.lines.push_back(line);
    }
  }
  if (!same_boot) found.lines.resize(found.synced);
  return found;
}

}  // namespace

struct PartFile::State {
  std::filesystem::path target, partial, journal_path;
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::string> journal;
  int fd = -1, journal_fd = -1;
  bool kept = false, resumed = false;
  std::optional<mode_t> old_mode;

  std::atomic<std::uint64_t> unsynced{0};  // bytes written since a sync was begun
  std::size_t recorded = 0;                // lines
  std::size_t syncing_lines = 0;           // that the running sync is about
  Clock::time_point last_sync = Clock::now();
  std::future<int> syncing;  // errno, or 0

  ~State() {
    if (fd >= 0 && kept) (void)sync_recorded();
    if (syncing.valid()) syncing.wait();  // it uses fd
    if (fd >= 0 && !kept) {
      ::unlink(partial.c_str());
      ::unlink(journal_path.c_str());
    }
    if (fd >= 0) ::close(fd);
    if (journal_fd >= 0) ::close(journal_fd);
  }
  Error failure(const std::string& what) const {
    return Error{ErrorCode::file_write, fmt::format("{}: {}: {}", name, what, reason())};
  }

  Result<Done> append(const std::string& line) {
    const std::string text = line + '\n';
    ssize_t done = 0;
    do done = ::write(journal_fd, text.data(), text.size());
    while (done < 0 && errno == EINTR);
    if (done != static_cast<ssize_t>(text.size())) return failure("its journal cannot be written");
    return Done{};
  }

  // An error of writing to the disk is told once only, so this must not be missed: finish() would
  // not hear of it again.
  Result<Done> end_sync() {
    errno = syncing.get();
    if (errno != 0) return failure("cannot be written out");
    return append(fmt::format("{}{}", synced_key, syncing_lines));
  }

  // Ends a sync that has run to its end, and begins one where it is time.
  Result<Done> sync_at_times() {
    if (syncing.valid()) {
      if (syncing.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return Done{};
      PARFAIT_CHECK_OK(end_sync());
    }
    const Clock::time_point now = Clock::now();
    if (unsynced < sync_bytes && now - last_sync < sync_time) return Done{};
    last_sync = now;
    unsynced = 0;
    syncing_lines = recorded;
    const auto sync = [descriptor = fd] { return ::fdatasync(descriptor) == 0 ? 0 : errno; };
    try {
      syncing = std::async(std::launch::async, sync);
    } catch (const std::system_error&) {  // no thread is to be had
      syncing = std::async(std::launch::deferred, sync);
    }
    return Done{};
  }

  Result<Done> sync_recorded() {
    if (syncing.valid()) PARFAIT_CHECK_OK(end_sync());
    if (::fdatasync(fd) != 0) return failure("cannot be written out");
    return append(fmt::format("{}{}", synced_key, recorded));
  }
};

PartFile::PartFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
PartFile::PartFile(PartFile&&) noexcept = default;
PartFile& PartFile::operator=(PartFile&&) noexcept = default;
PartFile::~PartFile() = default;

Result<PartFile> PartFile::create(const std::filesystem::path& target, std::uint64_t bytes,
                                  const std::string& fingerprint, Start start) {
  auto state = std::make_unique<State>();
  State& file = *state;
  file.target = target;
  file.name = printable(target.string(), 1000);
  file.bytes = bytes;
  PARFAIT_TRY(file.old_mode, resolve_target(file.target, file.name));
  file.partial = file.target;
  file.partial += ".partial";
  file.journal_path = file.partial;
  file.journal_path += ".journal";

  const int fd = ::open(file.partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (fd < 0) return file.failure("cannot be created");
  struct stat status;
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 || ::fstat(fd, &status) != 0) {
    ::close(fd);
    return make_error(ErrorCode::file_write,
                      "{}: another process is writing it at this moment (it holds {})", file.name,
                      printable(file.partial.string(), 1000));
  }
  if (!S_ISREG(status.st_mode)) {
    ::close(fd);
    return make_error(ErrorCode::file_write, "{}: {} is in the way and is no file", file.name,
                      printable(file.partial.string(), 1000));
  }
  file.fd = fd;

  std::vector<std::string> lines;
  if (start == Start::resume && static_cast<std::uint64_t>(status.st_size) == bytes)
    lines = read_lines(file.journal_path);
  const std::string boot = boot_id();
  Believed believed;
  if (!lines.empty() && lines.front() == fingerprint) {
    believed = believe(std::span(lines).subspan(1), boot);
    file.resumed = true;
  } else {
    // The journal goes first, and from the disk: it must not be found beside an emptied file.
    if (::unlink(file.journal_path.c_str()) == 0) sync_folder(file.journal_path);
    if (::ftruncate(fd, 0) != 0) return file.failure("cannot be emptied");
  }
  if (file.old_mode) ::fchmod(fd, *file.old_mode);

  // A file system that cannot reserve room finds a full disk later.
  int reserved = 0;
  do reserved = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  while (reserved != 0 && errno == EINTR);
  if (reserved != 0 && errno != EOPNOTSUPP && errno != ENOSYS && bytes > 0)
    return file.failure(fmt::format("there is no room for its {} bytes", bytes));
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return file.failure("cannot be sized");

  // Anew with the lines that hold, so that a line that was cut short is not continued.
  file.journal_fd = ::open(file.journal_path.c_str(),
                           O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (file.journal_fd < 0) return file.failure("its journal cannot be created");
  PartFile result(std::move(state));
  State& made = *result.state_;
  made.journal = std::move(believed.lines);
  made.recorded = made.journal.size();
  PARFAIT_CHECK_OK(made.append(fingerprint));
  PARFAIT_CHECK_OK(made.append(fmt::format("{}{}", boot_key, boot)));
  for (const std::string& line : made.journal) PARFAIT_CHECK_OK(made.append(line));
  if (believed.synced > 0)
    PARFAIT_CHECK_OK(made.append(fmt::format("{}{}", synced_key, believed.synced)));
  return result;
}

const std::vector<std::string>& PartFile::journal() const { return state_->journal; }

Result<Done> PartFile::write_at(std::uint64_t offset, ByteSpan bytes) {
  state_->unsynced.fetch_add(bytes.size(), std::memory_order_relaxed);
  errno = write_whole(state_->fd, offset, bytes);
  if (errno != 0) return state_->failure("cannot be written");
  return Done{};
}

Result<Done> PartFile::read_at(std::uint64_t offset, std::span<std::byte> bytes) const {
  errno = read_whole(state_->fd, offset, bytes);
  if (errno != 0) return state_->failure("cannot be read back");
  return Done{};
}

Result<Done> PartFile::record(const std::string& line) {
  PARFAIT_CHECK_OK(state_->append(line));
  ++state_->recorded;
  return state_->sync_at_times();
}

void PartFile::keep() { state_->kept = true; }

Result<Done> PartFile::finish() {
  State& file = *state_;
  if (file.syncing.valid()) PARFAIT_CHECK_OK(file.end_sync());
  if (::fsync(file.fd) != 0) return file.failure("cannot be written out");
  if (::rename(file.partial.c_str(), file.target.c_str()) != 0)
    return file.failure("cannot be put in place");
  ::unlink(file.journal_path.c_str());
  ::close(std::exchange(file.fd, -1));
  sync_folder(file.target);
  return Done{};
}

bool PartFile::resumed() const { return state_->resumed; }

const std::string& PartFile::name() const { return state_->name; }

}  // namespace parfait::io
