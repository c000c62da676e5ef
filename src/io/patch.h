// Overwrites parts of a file in place so that a kill at any moment damages nothing.
//
// First <file>.repair, the journal, is written and synced: for every part the bytes that are there
// and the bytes that will be. Only then is the file touched, synced, and the journal removed. Who
// finds a journal (find_patch) can therefore always finish the work (finish_patch): an incomplete
// journal means that the file was not touched yet, a complete one holds all that is to be written.
// An error on the way puts the old bytes back. A lock on the file keeps two processes apart.
#ifndef PARFAIT_IO_PATCH_H_
#define PARFAIT_IO_PATCH_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "base/bytes.h"
#include "parfait/error.h"

namespace parfait::io {

struct PatchPart {
  std::uint64_t offset = 0;
  std::vector<std::byte> bytes;
};

// Parts do not overlap. The bytes of the file from old_size on need no copy: they are new.
struct Patch {
  std::vector<PatchPart> parts;
  std::uint64_t old_size = 0, new_size = 0;
};

// Where a process can be killed, in order. The hook is for tests, which end the process in it.
enum class PatchStep { journal_begun, journal_done, part_begun, parts_done, sized };
struct PatchOptions {
  std::uint64_t piece = 1 << 20;  // bytes a write
  std::function<void(PatchStep)> hook = {};
};

std::filesystem::path patch_journal(const std::filesystem::path& file);

// expected_start: what the file must begin with, or else it is not the one that was planned for.
Result<Done> apply_patch(const std::filesystem::path& file, const Patch& patch,
                         ByteSpan expected_start, const PatchOptions& options = {});

// Whether a journal lies beside the file.
enum class PatchState { none, interrupted };
PatchState find_patch(const std::filesystem::path& file);
// Ends what an interrupted apply_patch left: writes what its journal holds, or removes a journal
// that is incomplete. Refuses a journal whose bytes, old or new, are not those of the file.
Result<Done> finish_patch(const std::filesystem::path& file);

}  // namespace parfait::io

#endif  // PARFAIT_IO_PATCH_H_
