#include "runtime/window.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/result.h"

namespace parfait::runtime {

Result<Window> Window::reserve(std::uint64_t bytes) {
  Window window;
  if (bytes == 0) return window;
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    return make_error(ErrorCode::out_of_memory, "{} of address space could not be had: {}",
                      bytes_text(bytes), std::generic_category().message(errno));
  window.data_ = static_cast<std::byte*>(data);
  window.size_ = bytes;
  return window;
}

Window::Window(Window&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Window& Window::operator=(Window&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Window::~Window() {
  if (data_) ::munmap(data_, size_);
}

void Window::drop(std::uint64_t offset, std::uint64_t bytes) {
  static const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (!data_ || offset > size_ || bytes > size_ - offset) return;
  const std::uint64_t begin = (offset + page - 1) / page * page;
  const std::uint64_t end = (offset + bytes) / page * page;
  if (begin < end) ::madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

}  // namespace parfait::runtime
