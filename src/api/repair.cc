#include "convert/repair.h"

namespace parfait {

Result<RepairPlan> plan_repair(const std::filesystem::path& path, const RepairOptions& options) {
  return convert::plan_repair(path, options);
}

Result<RepairReport> write_repair(const RepairPlan& plan, const RepairOutput& output) {
  return convert::write_repair(plan, output);
}

}  // namespace parfait
