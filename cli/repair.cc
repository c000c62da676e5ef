// parfait repair FILE: what is to be mended; with --write or -o, mends it.

#include <map>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::size_t listed = 5;  // changes of one kind that are told one by one

struct Arguments {
  std::string path, out;
  RepairOptions options;
  bool write = false, all = false;
};

std::string_view way_name(RepairWay way) {
  return way == RepairWay::nothing    ? "nothing"
         : way == RepairWay::in_place ? "in place"
                                      : "rewrite";
}

std::string shown(const std::string& text) { return text.empty() ? "-" : printable(text, 300); }

void print_change(Output& out, const RepairChange& change, const RepairPlan& plan) {
  const std::string& subject = change.tensor.empty() ? change.layer : change.tensor;
  out.print("{}", printable(subject, 1000));
  if (plan.files().size() > 1) out.print(" in {}", printable(change.file, 1000));
  if (!change.layer.empty() && !change.tensor.starts_with(change.layer))
    out.print(" ({})", printable(change.layer, 1000));
  out.print("\n  {} {}\n  {} {}\n", out.paint(Style::red, "is  "), shown(change.before),
            out.paint(Style::green, "will"), shown(change.after));
  out.print("  why  {}\n", printable(change.why, 1000));
}

// Changes for the same reason are told a few times and then counted.
void print_changes(Output& out, const RepairPlan& plan, const Arguments& arguments) {
  std::map<std::string_view, std::uint64_t> told;
  for (const RepairChange& change : plan.changes())
    if (++told[change.why] <= listed || arguments.all) print_change(out, change, plan);
  for (const auto& [why, number] : told)
    if (number > listed && !arguments.all)
      out.print("... and {} for the reason: {}\n", counted(number - listed, "more change"),
                printable(why, 300));
}

void print_way(Output& out, const RepairPlan& plan) {
  for (const RepairFile& file : plan.files()) {
    if (file.way == RepairWay::nothing) continue;
    const std::string name = printable(file.path, 1000);
    if (file.way == RepairWay::in_place)
      out.print("{}: can be mended in place, by writing {} of it\n", name,
                bytes_text(file.bytes_to_write));
    else
      out.print("{}: needs a new file of {}: {}\n", name, bytes_text(file.bytes_to_write),
                file.why);
  }
}

Json to_json(const RepairPlan& plan, const Arguments& arguments) {
  Json changes = Json::array(), remaining = Json::array(), files = Json::array();
  for (const RepairChange& change : plan.changes())
    changes.push_back({{"file", change.file},
                       {"layer", change.layer},
                       {"tensor", change.tensor},
                       {"before", change.before},
                       {"after", change.after},
                       {"why", change.why}});
  for (const Finding& finding : plan.remaining()) remaining.push_back(cli::to_json(finding));
  for (const RepairFile& file : plan.files())
    files.push_back({{"path", file.path},
                     {"way", way_name(file.way)},
                     {"bytes_to_write", file.bytes_to_write},
                     {"why", file.why}});
  return {{"path", arguments.path},
          {"changes", std::move(changes)},
          {"remaining", std::move(remaining)},
          {"files", std::move(files)},
          {"interrupted", plan.interrupted()}};
}

RepairPlan make_plan(const Arguments& arguments) {
  ProgressBar bar("weighing");
  RepairOptions options = arguments.options;
  options.progress = bar.callback();
  return get(plan_repair(arguments.path, options));
}

RepairReport write(const RepairPlan& plan, const Arguments& arguments) {
  ProgressBar bar("writing");
  return get(write_repair(plan, {arguments.out, bar.callback()}));
}

// Ends what an earlier run left half way; a dry run only tells of it.
int tell_interrupted(Program& program, const RepairPlan& plan, const Arguments& arguments) {
  if (program.json) {
    print_json(program.out, to_json(plan, arguments));
    return exit_ok;
  }
  for (const std::string& file : plan.interrupted())
    program.out.print("{}: an earlier repair was stopped half way; --write finishes it\n",
                      printable(file, 1000));
  return exit_ok;
}

int run(Program& program, const Arguments& arguments) {
  const bool writes = arguments.write || !arguments.out.empty();
  RepairPlan plan = make_plan(arguments);
  std::vector<std::string> finished;
  if (!plan.interrupted().empty()) {
    if (!writes) return tell_interrupted(program, plan, arguments);
    if (!arguments.write)
      fail(ErrorCode::file_write,
           fmt::format("{}: an earlier repair was stopped half way; finish it with --write first",
                       printable(plan.interrupted().front(), 1000)));
    finished = write(plan, {arguments.path, "", {}, true, false}).written;
    for (const std::string& file : finished)
      tell(fmt::format("{}: finished a repair that was stopped half way", printable(file, 1000)));
    plan = make_plan(arguments);
  }
  const bool anything = !plan.changes().empty();
  const int status = plan.remaining().empty() ? exit_ok : exit_no;
  Output& out = program.out;
  if (!program.json) {
    print_changes(out, plan, arguments);
    if (anything && arguments.out.empty()) print_way(out, plan);
    out.flush();
  }
  RepairReport report;
  if (writes && (anything || !arguments.out.empty())) report = write(plan, arguments);
  if (program.json) {
    Json json = to_json(plan, arguments);
    json["finished"] = finished;
    json["written"] = report.written;
    json["bytes_written"] = report.bytes_written;
    print_json(out, json);
    return status;
  }
  for (const Finding& finding : plan.remaining())
    out.print("{} {}\n", out.paint(Style::yellow, "stays:"), finding.line());
  for (const std::string& file : report.written) out.print("written: {}\n", printable(file, 1000));
  const std::string stays =
      plan.remaining().empty()
          ? std::string()
          : fmt::format("; {} cannot be mended", counted(plan.remaining().size(), "finding"));
  if (!anything)
    out.print("nothing to mend{}\n", stays);
  else if (writes)
    out.print("mended: {}{}\n", counted(plan.changes().size(), "change"), stays);
  else
    out.print("to mend: {}{}; this was a dry run, --write or -o NEW carries it out\n",
              counted(plan.changes().size(), "change"), stays);
  return status;
}

}  // namespace

void add_repair(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("repair", "Mend markers, names and scales without touching the weights");
  verb.footer(
      "Without --write or -o nothing is written. docs/repair.md lists what is mended and how.\n"
      "Exit status: 0 nothing stays wrong, 1 something cannot be mended, 2 the work could not be "
      "done.\n"
      "Example: parfait repair klein_int8.safetensors --write");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  CLI::Option* write = verb.add_flag(
      "--write", arguments->write,
      "Mend the file itself: in place where the weights can stay, else by a new file in its stead");
  verb.add_option("-o,--output", arguments->out,
                  "Write the mended file here (a folder for shards) and leave FILE alone")
      ->type_name("NEW")
      ->excludes(write);
  add_choice<Declarations>(
      verb, "--to", arguments->options.declarations,
      {{"markers", Declarations::markers}, {"table", Declarations::table}},
      "Declare every layer by a marker tensor, or in the header's table (default: as it is)");
  verb.add_flag_callback(
      "--deep", [arguments] { arguments->options.depth = CheckDepth::data; },
      "Also read int8 weights whose rotation is not declared, and judge by what they prove");
  verb.add_flag("--all", arguments->all, "Print every change, not only the first few of each kind");
  add_open_options(verb, arguments->options.open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
