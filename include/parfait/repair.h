// Repair: mends the known dialects of checkpoints without touching their weights.
//
// plan_repair() reads headers, markers and scales only (weights too where evidence about their
// rotation is asked for) and changes nothing. Every change is proven: by the tensors' shapes, or by
// what ComfyUI reads; whatever cannot be proven is left as it is and named. What would come out is
// checked as any checkpoint before it is offered. write_repair() carries a plan out, in place where
// that can be done, and is safe against being killed at any moment (docs/repair.md).
#ifndef PARFAIT_REPAIR_H_
#define PARFAIT_REPAIR_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"

namespace parfait {

// Where layers are to be declared: where they are now; in marker tensors; in the header's table.
enum class Declarations { as_they_are, markers, table };

struct RepairOptions {
  OpenOptions open = {};  // trailing bytes are always let in: they are one of the things to mend
  Declarations declarations = Declarations::as_they_are;
  // data: int8 weights whose rotation is not declared are read, and judged where they are evidence.
  CheckDepth depth = CheckDepth::headers;
  ProgressCallback progress = {};
};

// One thing that is mended. Fields that do not apply are empty.
struct RepairChange {
  std::string file;
  std::string layer;
  std::string tensor;  // or "__metadata__._quantization_metadata", "the file's end", ...
  std::string before, after;
  std::string why;
};

enum class RepairWay {
  nothing,   // the file is as it should be
  in_place,  // header, markers and small tensors are written over; the weights stay where they are
  rewrite,   // a new file is written
};
struct RepairFile {
  std::string path;
  RepairWay way = RepairWay::nothing;
  std::uint64_t bytes_to_write = 0;  // of the file itself
  std::string why;                   // it cannot be mended in place
};

class RepairPlan {
 public:
  std::span<const RepairChange> changes() const;
  // What is wrong and stays so, being not proven: errors, and warnings about declarations.
  std::span<const Finding> remaining() const;
  std::span<const RepairFile> files() const;  // shards in order
  // Files of which an earlier write_repair() was stopped half way. They cannot be looked into:
  // write_repair() finishes that repair, and a new plan tells the rest.
  std::span<const std::string> interrupted() const;

  struct State;
  explicit RepairPlan(std::shared_ptr<const State> state);
  const State& state() const { return *state_; }

 private:
  std::shared_ptr<const State> state_;
};

Result<RepairPlan> plan_repair(const std::filesystem::path& path,
                               const RepairOptions& options = {});

struct RepairOutput {
  // Empty: the files themselves are mended. Else a file to write, or for a shard set a folder, and
  // the source is left alone.
  std::filesystem::path target = {};
  ProgressCallback progress = {};
};
struct RepairReport {
  std::uint64_t bytes_written = 0;   // into files, journals aside
  std::vector<std::string> written;  // the files that were changed or made
};
// Fails where a file cannot be written, or was changed since the plan was made; then each file is
// as it was or mended, never in between.
Result<RepairReport> write_repair(const RepairPlan& plan, const RepairOutput& output = {});

}  // namespace parfait

#endif  // PARFAIT_REPAIR_H_
