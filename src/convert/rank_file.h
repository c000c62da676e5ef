// A rank's file while it is written, and while it is read: each from front to back, with its
// digest.
#ifndef PARFAIT_CONVERT_RANK_FILE_H_
#define PARFAIT_CONVERT_RANK_FILE_H_

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "io/reader.h"
#include "io/replacement.h"

namespace parfait::convert {

inline constexpr std::uint64_t piece_bytes = 8 << 20;  // that are in memory at a time
inline constexpr std::uint64_t buffer_bytes = 64 << 10;
inline constexpr std::uint64_t dropped_at_once = 1 << 20;

// Writes a file whole or not at all, small pieces gathered.
class StreamOut {
 public:
  static Result<StreamOut> create(const std::filesystem::path& target) {
    PARFAIT_TRY(io::Replacement file, io::Replacement::create(target));
    return StreamOut(std::move(file));
  }
  Result<Done> append(ByteSpan bytes) {
    digest_.add(bytes);
    bytes_ += bytes.size();
    if (bytes.size() < buffer_bytes - buffer_.size()) {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
      return Done{};
    }
    PARFAIT_CHECK_OK(flush());
    return file_.append(bytes);
  }
  Result<Done> append_zeros(std::uint64_t count) {
    static const std::vector<std::byte> zeros(buffer_bytes);
    for (; count > 0; count -= std::min(count, buffer_bytes))
      PARFAIT_CHECK_OK(append(ByteSpan(zeros).first(std::min(count, buffer_bytes))));
    return Done{};
  }
  Result<Done> finish() {
    PARFAIT_CHECK_OK(flush());
    return file_.finish();
  }
  std::uint64_t bytes() const { return bytes_; }
  std::string digest() const { return digest_.text(); }

 private:
  explicit StreamOut(io::Replacement file) : file_(std::move(file)) {}
  Result<Done> flush() {
    if (buffer_.empty()) return Done{};
    auto written = file_.append(buffer_);
    buffer_.clear();
    return written;
  }

  io::Replacement file_;
  std::vector<std::byte> buffer_;
  Digest digest_;
  std::uint64_t bytes_ = 0;
};

// Reads a file from front to back.
class StreamIn {
 public:
  explicit StreamIn(io::ReaderPtr reader) : reader_(std::move(reader)) {}
  // The next bytes, valid until the next call. `count` should be a piece at most.
  Result<ByteSpan> take(std::uint64_t count) {
    if (at_ - dropped_ >= dropped_at_once) {
      reader_->drop(dropped_, at_ - dropped_);
      dropped_ = at_;
    }
    PARFAIT_TRY(const ByteSpan bytes, reader_->read(at_, count, scratch_));
    digest_.add(bytes);
    at_ += count;
    return bytes;
  }
  // Calls use(bytes) for the next `count` bytes in pieces of at most piece_bytes.
  template <class Use>
  Result<Done> each(std::uint64_t count, const Use& use) {
    while (count > 0) {
      const std::uint64_t now = std::min(count, piece_bytes);
      PARFAIT_TRY(const ByteSpan bytes, take(now));
      PARFAIT_CHECK_OK(use(bytes));
      count -= now;
    }
    return Done{};
  }
  Result<Done> skip(std::uint64_t count) {
    return each(count, [](ByteSpan) -> Result<Done> { return Done{}; });
  }
  // Bytes from the place reached on, which stay to be taken.
  Result<ByteSpan> peek(std::uint64_t offset, std::uint64_t count,
                        std::vector<std::byte>& scratch) const {
    return reader_->read(at_ + offset, count, scratch);
  }
  std::uint64_t at() const { return at_; }
  const io::Reader& reader() const { return *reader_; }
  std::string digest() const { return digest_.text(); }

 private:
  io::ReaderPtr reader_;
  std::vector<std::byte> scratch_;
  Digest digest_;
  std::uint64_t at_ = 0, dropped_ = 0;
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_RANK_FILE_H_
