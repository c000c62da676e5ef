// Planning and writing repairs; the public functions of parfait/repair.h call these.
#ifndef PARFAIT_CONVERT_REPAIR_H_
#define PARFAIT_CONVERT_REPAIR_H_

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "convert/repair_draft.h"
#include "convert/repair_layout.h"
#include "parfait/repair.h"

namespace parfait {

struct RepairPlan::State {
  std::filesystem::path path;
  std::vector<RepairChange> changes;
  std::vector<Finding> remaining;
  std::vector<RepairFile> files;
  std::vector<std::string> interrupted;

  // What is to be written.
  std::vector<Checkpoint> source;  // one, where the files could be looked into
  std::vector<convert::DraftFile> drafts;
  std::vector<convert::InPlace> in_place;  // as drafts
  std::filesystem::path index_file;        // empty: the files have none
  std::string index_text, index_between;   // what it will say; what holds in between. Empty: as now
};

}  // namespace parfait

namespace parfait::convert {

Result<RepairPlan> make_repair_plan(const std::filesystem::path& path,
                                    const RepairOptions& options);
Result<RepairReport> carry_out_repair(const RepairPlan& plan, const RepairOutput& output);

// repair_index.cc: the shard index of what is at path; empty where there is none.
Result<std::filesystem::path> index_of(const std::filesystem::path& path,
                                       const container::TensorIndex& index);
// Rewrites the index's weight_map where the drafts' tensors differ from it.
Result<Done> mend_index(RepairPlan::State& state, const container::TensorIndex& index);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_REPAIR_H_
