// A rank's file while it is written, and while it is read: each from front to back, with its
// digest.
#ifndef PARFAIT_CONVERT_RANK_FILE_H_
#define PARFAIT_CONVERT_RANK_FILE_H_

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/digest.h"
#include "base/result.h"
#include "io/new_folder.h"
#include "io/part_file.h"
#include "io/reader.h"
#include "io/replacement.h"
#include "parfait/shard.h"

namespace parfait::convert {

inline constexpr std::uint64_t piece_bytes = 8 << 20;  // that are in memory at a time
inline constexpr std::uint64_t buffer_bytes = 64 << 10;
inline constexpr std::uint64_t dropped_at_once = 1 << 20;

inline io::PartFile::Start start_of(ShardStart start) {
  return start == ShardStart::resume ? io::PartFile::Start::resume : io::PartFile::Start::afresh;
}

// Writes a file from front to back, small pieces gathered. What an earlier run left of it is
// compared with what is to be written, and stays as far as it is the same.
class StreamOut {
 public:
  // A file that appears under its name when it is finished.
  static Result<StreamOut> create(const std::filesystem::path& target, std::uint64_t bytes,
                                  const std::string& fingerprint, io::PartFile::Start start) {
    PARFAIT_CHECK_OK(io::refuse_other_kind(target, io::safetensors_file));
    PARFAIT_TRY(io::PartFile file, io::PartFile::create(target, bytes, fingerprint, start));
    const std::uint64_t old = file.resumed() ? bytes : 0;
    return StreamOut(std::move(file), old);
  }
  static Result<StreamOut> create(const io::NewFolder& folder, const std::string& name) {
    PARFAIT_TRY(io::FolderFile file, folder.open(name));
    const std::uint64_t old = file.size();
    return StreamOut(std::move(file), old);
  }
  Result<Done> append(ByteSpan bytes) {
    digest_.add(bytes);
    bytes_ += bytes.size();
    if (bytes.size() < buffer_bytes - buffer_.size()) {
      buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
      return Done{};
    }
    PARFAIT_CHECK_OK(flush());
    return write(bytes);
  }
  Result<Done> append_zeros(std::uint64_t count) {
    static const std::vector<std::byte> zeros(buffer_bytes);
    for (; count > 0; count -= std::min(count, buffer_bytes))
      PARFAIT_CHECK_OK(append(ByteSpan(zeros).first(std::min(count, buffer_bytes))));
    return Done{};
  }
  Result<Done> finish() {
    PARFAIT_CHECK_OK(flush());
    if (auto* file = std::get_if<io::FolderFile>(&file_)) return file->finish(written_);
    return std::get<io::PartFile>(file_).finish();
  }
  // Leaves what was written to a later run. The files of a folder stay with the folder.
  void keep() {
    if (auto* file = std::get_if<io::PartFile>(&file_)) file->keep();
  }
  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t kept() const { return kept_; }  // bytes that an earlier run had written
  std::string digest() const { return digest_.text(); }

 private:
  using File = std::variant<io::PartFile, io::FolderFile>;
  StreamOut(File file, std::uint64_t old) : file_(std::move(file)), old_(old) {}
  Result<Done> flush() {
    auto written = write(buffer_);
    buffer_.clear();
    return written;
  }
  Result<Done> write(ByteSpan bytes) {
    while (!bytes.empty() && written_ < old_) {
      const ByteSpan piece =
          bytes.first(std::min<std::uint64_t>({bytes.size(), old_ - written_, buffer_bytes}));
      there_.resize(piece.size());
      PARFAIT_CHECK_OK(
          std::visit([&](const auto& file) { return file.read_at(written_, there_); }, file_));
      if (!std::ranges::equal(piece, there_)) old_ = written_;  // from here on all is new
      if (old_ == written_) break;
      written_ += piece.size();
      kept_ += piece.size();
      bytes = bytes.subspan(piece.size());
    }
    PARFAIT_CHECK_OK(std::visit([&](auto& file) { return file.write_at(written_, bytes); }, file_));
    written_ += bytes.size();
    return Done{};
  }

  File file_;
  std::vector<std::byte> buffer_, there_;
  Digest digest_;
  std::uint64_t bytes_ = 0;  // given
  std::uint64_t written_ = 0, old_ = 0, kept_ = 0;
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
