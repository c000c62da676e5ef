// Options of tensor parallelism, as `plan` and `shard` have them.
#ifndef PARFAIT_CLI_TP_H_
#define PARFAIT_CLI_TP_H_

#include <string>

#include "cli/common.h"

namespace parfait::cli {

struct TpArguments {
  std::string rules;
  Unevenness unevenness = Unevenness::forbidden;
  Unsplittable unsplittable = Unsplittable::replicate;
};
// --tp-rules, --tp-uneven, --tp-strict
void add_tp_options(CLI::App& verb, TpArguments& arguments);
// Puts them into the options; reads the rules file.
void set_tp_options(PlanOptions& options, const TpArguments& arguments);
// make_plan(), with the rules file's name before what is wrong in it.
Plan tp_plan(const CheckedCheckpoint& checked, const PlanOptions& options,
             const TpArguments& arguments);

// The files of all ranks are open at once, and there may be more ranks than a shell allows files.
void allow_many_files();

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_TP_H_
