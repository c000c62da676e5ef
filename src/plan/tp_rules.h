// Tensor-parallel rules: which axis a layer's name asks for. Data, not code: a text of lines
//
//   pattern axis [parts=a,b,...] [rows=F*columns | columns=F*rows]    # comment
//
// axis is outputs, inputs or replicate; patterns are globs (* and ?) for the whole name, and a
// leading
// "*." also matches a name without anything in front. parts gives the proportions of fused parts,
// each of which is split on its own. A condition restricts a rule to layers of that shape. The
// first rule that matches counts; a layer that none matches is replicated.
#ifndef PARFAIT_PLAN_TP_RULES_H_
#define PARFAIT_PLAN_TP_RULES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parfait/error.h"

namespace parfait::plan {

enum class NaturalAxis { outputs, inputs, replicate };

struct TpRule {
  std::string pattern;
  NaturalAxis axis = NaturalAxis::replicate;
  std::vector<std::uint64_t> parts = {1};
  std::uint64_t rows_by_columns = 0;  // where not 0: rows = this · columns
  std::uint64_t columns_by_rows = 0;  // where not 0: columns = this · rows
  unsigned line = 0;

  bool matches(std::string_view name, std::uint64_t rows, std::uint64_t columns) const;
};

Result<std::vector<TpRule>> parse_tp_rules(std::string_view text);

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_TP_RULES_H_
