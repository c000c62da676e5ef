// The verbs. Each function adds its command to the parser; when that command is the one given, it
// sets program.run.
#ifndef PARFAIT_CLI_VERBS_H_
#define PARFAIT_CLI_VERBS_H_

#include "cli/common.h"

namespace parfait::cli {

void add_inspect(CLI::App& app, Program& program);
void add_check(CLI::App& app, Program& program);
void add_plan(CLI::App& app, Program& program);
void add_diff(CLI::App& app, Program& program);
void add_decode(CLI::App& app, Program& program);
void add_convert(CLI::App& app, Program& program);
void add_repair(CLI::App& app, Program& program);
void add_run(CLI::App& app, Program& program);
void add_generate(CLI::App& app, Program& program);
void add_quantize(CLI::App& app, Program& program);
void add_shard(CLI::App& app, Program& program);
void add_merge(CLI::App& app, Program& program);
void add_verify(CLI::App& app, Program& program);
void add_formats(CLI::App& app, Program& program);
#if defined(PARFAIT_WITH_BENCH)
void add_bench(CLI::App& app, Program& program);
#endif

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_VERBS_H_
