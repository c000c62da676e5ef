// Cuts a checkpoint for tensor-parallel ranks as its plan says, and puts it together again.
//
// Each rank's file is a checkpoint of its own: it opens, checks and plans as any other. Beside them
// stand a manifest and the bytes of the source that no rank holds, so that merge() gives back the
// source byte for byte. docs/shard.md has the layout of the folder. Both calls stream, with some
// megabytes of memory; what they write appears whole or not at all.
#ifndef PARFAIT_SHARD_H_
#define PARFAIT_SHARD_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"
#include "parfait/plan.h"

namespace parfait {

// Where to begin. resume: what an interrupted run of the same work left is read and compared, and
// written again only from where it differs; and it is left in its place on cancellation.
enum class ShardStart { afresh, resume };

struct ShardOptions {
  // What was opened: where a shard set's index is looked for.
  std::filesystem::path source;
  Compat compat = Compat::none;  // with which it was opened
  ShardStart start = ShardStart::afresh;
  ProgressCallback progress;
};

struct WrittenFile {
  std::string path;
  std::uint64_t bytes = 0;
};

struct ShardReport {
  std::vector<WrittenFile> ranks;
  std::uint64_t layers_split = 0, layers_replicated = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t resumed_bytes = 0;  // of the ranks' that an earlier run had written
};

// Writes one file for each rank of the plan, 1 to 1024, into a folder that is new, empty, or the
// result of an earlier call.
Result<ShardReport> shard(const Plan& plan, const std::filesystem::path& folder,
                          const ShardOptions& options = {});

struct MergeOptions {
  ShardStart start = ShardStart::afresh;
  Io io = Io::mapped;
  std::uint64_t max_header_bytes = 100'000'000;
  ProgressCallback progress;
};

struct MergeReport {
  std::vector<WrittenFile> files;
  std::uint64_t resumed_bytes = 0;  // that an earlier run had written
};

// The source of a folder that shard() wrote, byte for byte: `target` is the file, or for a source
// of several files the folder to write them into, with their index. Refuses ranks that are missing,
// mixed or changed, and a manifest that does not fit them.
Result<MergeReport> merge(const std::filesystem::path& folder, const std::filesystem::path& target,
                          const MergeOptions& options = {});

}  // namespace parfait

#endif  // PARFAIT_SHARD_H_
