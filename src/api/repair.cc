#include "convert/repair.h"

namespace parfait {

Result<RepairPlan> plan_repair(const std::filesystem::path& path, const RepairOptions& options) {
  return convert::make_repair_plan(path, options);
}

Result<RepairReport> write_repair(const RepairPlan& plan, const RepairOutput& output) {
  return convert::carry_out_repair(plan, output);
}

}  // namespace parfait
