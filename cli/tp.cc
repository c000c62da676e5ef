#include "cli/tp.h"

#include <sys/resource.h>

#include <fstream>

namespace parfait::cli {
namespace {

constexpr std::streamsize longest_rules = 1 << 20;  // bytes of a rules file

std::string read_rules(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(longest_rules) + 1, '\0');
  file.read(text.data(), longest_rules + 1);
  if (!file.is_open() || file.bad() || file.gcount() == 0)
    fail(ErrorCode::plan_rules,
         fmt::format("{}: the tensor-parallel rules cannot be read, or are empty",
                     printable(path, 1000)));
  if (file.gcount() > longest_rules)
    fail(ErrorCode::plan_rules,
         fmt::format("{}: is too long for tensor-parallel rules", printable(path, 1000)));
  text.resize(static_cast<std::size_t>(file.gcount()));
  return text;
}

}  // namespace

void add_tp_options(CLI::App& verb, TpArguments& arguments) {
  verb.add_option("--tp-rules", arguments.rules,
                  "Rules for which layers split on which axis, in place of the built-in ones")
      ->type_name("FILE");
  verb.add_flag_callback(
      "--tp-uneven", [&arguments] { arguments.unevenness = Unevenness::allowed; },
      "Allow uneven splits that fall on groups");
  verb.add_flag_callback(
      "--tp-strict", [&arguments] { arguments.unsplittable = Unsplittable::refuse; },
      "Fail where a layer cannot be split, instead of replicating it");
}

void set_tp_options(PlanOptions& options, const TpArguments& arguments) {
  options.unevenness = arguments.unevenness;
  options.unsplittable = arguments.unsplittable;
  if (!arguments.rules.empty()) options.tp_rules = read_rules(arguments.rules);
}

Plan tp_plan(const CheckedCheckpoint& checked, const PlanOptions& options,
             const TpArguments& arguments) {
  auto plan = make_plan(checked, options);
  if (!plan && plan.error().code == ErrorCode::plan_rules && !arguments.rules.empty())
    fail(ErrorCode::plan_rules,
         fmt::format("{}: {}", printable(arguments.rules, 1000), plan.error().message));
  return get(std::move(plan));
}

void allow_many_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace parfait::cli
