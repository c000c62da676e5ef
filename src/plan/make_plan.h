// Makes a plan. See parfait/plan.h for what it decides.
#ifndef PARFAIT_PLAN_MAKE_PLAN_H_
#define PARFAIT_PLAN_MAKE_PLAN_H_

#include <memory>

#include "formats/format.h"
#include "plan/state.h"

namespace parfait::plan {

Result<std::shared_ptr<const State>> make(const CheckedCheckpoint& checkpoint,
                                          const PlanOptions& options);

// The methods that a format's linear layers may take, the first by default, and the names of the
// kernels for them: for the format table.
struct FormatMethods {
  std::string methods, kernels;
};
FormatMethods methods_of(std::string_view format);

// The kernel tolerance of a planned layer: what its y may differ by (relative L2) from the product
// of the same input with the decoded weight.
double tolerance_of(const formats::Format& format, Method method);

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_MAKE_PLAN_H_
