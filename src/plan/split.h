// How one layer is cut over ranks.
#ifndef PARFAIT_PLAN_SPLIT_H_
#define PARFAIT_PLAN_SPLIT_H_

#include <string>
#include <vector>

#include "formats/format.h"
#include "parfait/plan.h"
#include "plan/tp_rules.h"

namespace parfait::plan {

struct Split {
  SplitAxis axis = SplitAxis::replicated;
  std::string reason;
  std::vector<std::vector<Range>> shares;  // by rank; empty where replicated
  // The rules name an axis, but the format's groups or the rank count do not allow it.
  bool refused = false;
};

// rule: the first that matches, or null where none does.
Split split_layer(const formats::Layer& layer, const TpRule* rule, const PlanOptions& options);

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_SPLIT_H_
