// A file of known size that is written at any offset and appears under its name when it is whole.
//
// Until then its bytes are in <target>.partial, with the list of what is done in
// <target>.partial.journal. Whoever holds a PartFile holds a lock on it. On an error, or where
// finish() is never called, both are removed, unless keep() was called: then a later create() with
// Start::resume and the same fingerprint goes on from there. A process that is killed leaves both,
// and the target untouched. write_at may be called from several threads at once.
//
// The journal runs ahead of the disk: a line says that bytes were written, which the system keeps
// when the process is killed, but not when the machine loses its power. So the journal also has the
// boot that it was written in (#boot) and how many of its lines were on the disk at some moment
// (#synced, after an fdatasync every 256 MB or 5 s, in the background). After another boot only
// those count.
#ifndef PARFAIT_IO_PART_FILE_H_
#define PARFAIT_IO_PART_FILE_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "parfait/error.h"

namespace parfait::io {

class PartFile {
 public:
  enum class Start { afresh, resume };
  // fingerprint: one line that tells whether a partial file is of the same work. The room is
  // reserved at once, so that a full disk is found before any work is done.
  static Result<PartFile> create(const std::filesystem::path& target, std::uint64_t bytes,
                                 const std::string& fingerprint, Start start = Start::afresh);

  // The lines that earlier runs wrote into the journal; empty where the file was begun afresh.
  const std::vector<std::string>& journal() const;
  // Whether an earlier run's bytes are in it. Those of which the journal says nothing may be any.
  bool resumed() const;
  Result<Done> write_at(std::uint64_t offset, ByteSpan bytes);
  Result<Done> read_at(std::uint64_t offset, std::span<std::byte> bytes) const;
  // Adds a line (of no line breaks, not beginning with #) to the journal: all that it speaks of has
  // been written. From one thread at a time.
  Result<Done> record(const std::string& line);
  void keep();
  // Syncs and renames; the journal is removed.
  Result<Done> finish();
  const std::string& name() const;  // the target's, for messages

  PartFile(PartFile&&) noexcept;
  PartFile& operator=(PartFile&&) noexcept;
  ~PartFile();

 private:
  struct State;
  explicit PartFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace parfait::io

#endif  // PARFAIT_IO_PART_FILE_H_
