// Room for all bytes of a tensor, of which only those in use take memory: for code that finds row r
// at r · row bytes while only some rows are at hand. Bytes never written or dropped are zeros. Any
// thread may use its own range.
#ifndef PARFAIT_RUNTIME_WINDOW_H_
#define PARFAIT_RUNTIME_WINDOW_H_

#include <cstddef>
#include <cstdint>

#include "base/bytes.h"
#include "parfait/error.h"

namespace parfait::runtime {

class Window {
 public:
  static Result<Window> reserve(std::uint64_t bytes);
  Window() = default;
  Window(Window&& other) noexcept;
  Window& operator=(Window&& other) noexcept;
  ~Window();

  std::byte* data() { return data_; }
  ByteSpan bytes() const { return {data_, size_}; }
  // Gives back the whole pages among these bytes.
  void drop(std::uint64_t offset, std::uint64_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_WINDOW_H_
