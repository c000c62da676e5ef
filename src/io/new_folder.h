// A folder that appears with all of its files or not at all.
//
// Until then it is <target>.partial, beside <target>.partial.journal, which says what work it is
// of. Whoever holds a NewFolder holds a lock on it. If finish() is never called both are removed
// and the target is untouched, unless keep() was called: then a later create() with Start::resume
// and the same fingerprint finds the files that were written. A process that is killed leaves both.
#ifndef PARFAIT_IO_NEW_FOLDER_H_
#define PARFAIT_IO_NEW_FOLDER_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "io/part_file.h"
#include "parfait/error.h"

namespace parfait::io {

// A file of such a folder, under its name from the start.
class FolderFile {
 public:
  std::uint64_t size() const { return size_; }  // when it was opened
  Result<Done> write_at(std::uint64_t offset, ByteSpan bytes);
  Result<Done> read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  // Cuts it to `bytes` and syncs it.
  Result<Done> finish(std::uint64_t bytes);

  FolderFile(FolderFile&& other) noexcept;
  FolderFile& operator=(FolderFile&&) = delete;
  ~FolderFile();

 private:
  friend class NewFolder;
  explicit FolderFile(std::string name) : name_(std::move(name)) {}
  std::string name_;  // for messages
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

class NewFolder {
 public:
  using Start = PartFile::Start;
  // The target may be absent, an empty folder, or a folder that holds no other names than these,
  // which is then replaced. The current folder is refused, since whoever stands in it would stand
  // in the old one afterwards.
  static Result<NewFolder> create(const std::filesystem::path& target,
                                  const std::vector<std::string>& replaceable,
                                  const std::string& fingerprint, Start start);
  // Where files go until finish().
  const std::filesystem::path& path() const { return temporary_; }
  // A file of this name, which may be in a folder of its own; of a resumed folder with what an
  // earlier run wrote into it.
  Result<FolderFile> open(const std::string& name) const;
  void keep() { left_ = Left::kept; }
  Result<Done> finish();

  NewFolder(NewFolder&& other) noexcept;
  NewFolder& operator=(NewFolder&&) = delete;
  ~NewFolder();

 private:
  NewFolder() = default;
  Result<Done> make_temporary();

  std::filesystem::path target_, temporary_, journal_;
  std::string name_;  // the target's, for messages
  int lock_ = -1;     // the temporary, open
  enum class Left { removed, kept } left_ = Left::removed;
};

}  // namespace parfait::io

#endif  // PARFAIT_IO_NEW_FOLDER_H_
