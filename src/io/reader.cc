#include "io/reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/result.h"

namespace parfait::io {
namespace {

std::string errno_text(int error) { return std::generic_category().message(error); }

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

Error outside(const Reader& reader, std::uint64_t offset, std::uint64_t bytes) {
  return make_error(ErrorCode::file_read, "{}: bytes {} to {} lie outside the file's {} bytes",
                    printable(reader.name(), 1000), offset, offset + bytes, reader.size());
}

bool inside(const Reader& reader, std::uint64_t offset, std::uint64_t bytes) {
  return offset <= reader.size() && bytes <= reader.size() - offset;
}

// Fails if the file is shorter now than when it was opened.
Result<Done> still_whole(const Reader& reader, int fd, std::uint64_t end) {
  struct stat status;
  if (::fstat(fd, &status) != 0)
    return make_error(ErrorCode::file_read, "{}: cannot be examined: {}",
                      printable(reader.name(), 1000), errno_text(errno));
  if (static_cast<std::uint64_t>(status.st_size) < end)
    return make_error(
        ErrorCode::file_read,
        "{}: shrank from {} to {} bytes while it was in use; another program rewrote it",
        printable(reader.name(), 1000), reader.size(), status.st_size);
  return Done{};
}

class MappedReader final : public Reader {
 public:
  MappedReader(std::string name, std::uint64_t size, Descriptor fd, const std::byte* data)
      : Reader(std::move(name), size), fd_(std::move(fd)), data_(data) {}
  ~MappedReader() override {
    if (data_) ::munmap(const_cast<std::byte*>(data_), size());
  }

  Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                        std::vector<std::byte>&) const override {
    if (!inside(*this, offset, bytes)) return outside(*this, offset, bytes);
    PARFAIT_CHECK_OK(still_whole(*this, fd_.get(), offset + bytes));
    return ByteSpan(data_ + offset, bytes);
  }

  void drop(std::uint64_t offset, std::uint64_t bytes) const override {
    static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
    if (!inside(*this, offset, bytes)) return;
    const std::uint64_t begin = (offset + page - 1) / page * page;
    const std::uint64_t end = (offset + bytes) / page * page;
    if (begin < end) ::madvise(const_cast<std::byte*>(data_ + begin), end - begin, MADV_DONTNEED);
  }

 private:
  Descriptor fd_;
  const std::byte* data_;
};

class PreadReader final : public Reader {
 public:
  PreadReader(std::string name, std::uint64_t size, Descriptor fd)
      : Reader(std::move(name), size), fd_(std::move(fd)) {}

  Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                        std::vector<std::byte>& scratch) const override {
    if (!inside(*this, offset, bytes)) return outside(*this, offset, bytes);
    PARFAIT_CHECK_OK(still_whole(*this, fd_.get(), offset + bytes));
    scratch.resize(bytes);
    std::uint64_t done = 0;
    while (done < bytes) {
      const std::uint64_t most = std::min<std::uint64_t>(bytes - done, 1u << 30);
      const ssize_t got =
          ::pread(fd_.get(), scratch.data() + done, most, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        return make_error(ErrorCode::file_read, "{}: reading at byte {} failed: {}",
                          printable(name(), 1000), offset + done, errno_text(errno));
      if (got == 0)
        return make_error(ErrorCode::file_read,
                          "{}: ended at byte {} although it had {} bytes when it was opened",
                          printable(name(), 1000), offset + done, size());
      done += static_cast<std::uint64_t>(got);
    }
    return ByteSpan(scratch.data(), bytes);
  }

 private:
  Descriptor fd_;
};

class MemoryReader final : public Reader {
 public:
  MemoryReader(std::string name, std::vector<std::byte> bytes)
      : Reader(std::move(name), bytes.size()), bytes_(std::move(bytes)) {}

  Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                        std::vector<std::byte>&) const override {
    if (!inside(*this, offset, bytes)) return outside(*this, offset, bytes);
    return ByteSpan(bytes_.data() + offset, bytes);
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

void Reader::drop(std::uint64_t, std::uint64_t) const {}

Result<ReaderPtr> open_file(const std::filesystem::path& path, Io io) {
  const std::string name = path.string();
  // O_NONBLOCK: a FIFO that nobody writes to must not hang us; it is refused below.
  Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0)
    return make_error(ErrorCode::file_not_found, "{}: cannot be opened: {}", printable(name, 1000),
                      errno_text(errno));
  struct stat status;
  if (::fstat(fd.get(), &status) != 0)
    return make_error(ErrorCode::file_read, "{}: cannot be examined: {}", printable(name, 1000),
                      errno_text(errno));
  if (!S_ISREG(status.st_mode))
    return make_error(ErrorCode::file_not_found, "{}: is {}, not a file", printable(name, 1000),
                      S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (io == Io::pread || size == 0)
    return ReaderPtr(std::make_shared<PreadReader>(name, size, std::move(fd)));
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::file_read,
                      "{}: cannot be mapped into memory: {}; --io pread reads it without a mapping",
                      printable(name, 1000), errno_text(errno));
  return ReaderPtr(std::make_shared<MappedReader>(name, size, std::move(fd),
                                                  static_cast<const std::byte*>(data)));
}

ReaderPtr memory_reader(std::string name, std::vector<std::byte> bytes) {
  return std::make_shared<MemoryReader>(std::move(name), std::move(bytes));
}

}  // namespace parfait::io
