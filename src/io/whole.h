// Reads and writes of a file descriptor that are done whole. They return 0, or else an errno.
#ifndef PARFAIT_IO_WHOLE_H_
#define PARFAIT_IO_WHOLE_H_

#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <span>

#include "base/bytes.h"

namespace parfait::io {

inline int write_whole(int fd, std::uint64_t offset, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return 0;
}

// EIO where the file ends before.
inline int read_whole(int fd, std::uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done == 0) return EIO;
    if (done < 0) return errno;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return 0;
}

}  // namespace parfait::io

#endif  // PARFAIT_IO_WHOLE_H_
