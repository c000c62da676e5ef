// Random access to a file's bytes, behind one interface: a memory mapping, pread, or a block of
// memory.
//
// A Reader is immutable and safe to use from any thread at once. Every read is checked against the
// file's size at that moment, so a file that shrinks while in use gives an error (a mapped page
// that is touched later than that may still fault; Io::pread never does).
#ifndef PARFAIT_IO_READER_H_
#define PARFAIT_IO_READER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "parfait/checkpoint.h"
#include "parfait/error.h"

namespace parfait::io {

class Reader {
 public:
  virtual ~Reader() = default;
  const std::string& name() const { return name_; }  // the path, for messages
  std::uint64_t size() const { return size_; }       // when it was opened

  // Bytes [offset, offset + bytes), valid while both the reader and scratch live and scratch is not
  // reused. Mapped and memory readers return their own bytes and leave scratch alone.
  virtual Result<ByteSpan> read(std::uint64_t offset, std::uint64_t bytes,
                                std::vector<std::byte>& scratch) const = 0;
  // The caller won't need these bytes again soon: a mapping drops its whole pages among them.
  virtual void drop(std::uint64_t offset, std::uint64_t bytes) const;

 protected:
  Reader(std::string name, std::uint64_t size) : name_(std::move(name)), size_(size) {}

 private:
  std::string name_;
  std::uint64_t size_;
};

using ReaderPtr = std::shared_ptr<const Reader>;

Result<ReaderPtr> open_file(const std::filesystem::path& path, Io io);
// Owns its bytes; name stands for the path in messages.
ReaderPtr memory_reader(std::string name, std::vector<std::byte> bytes);

}  // namespace parfait::io

#endif  // PARFAIT_IO_READER_H_
