// parfait check FILE: every finding.

#include <map>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::size_t many = 12;  // findings, from which on a list ends with a count by code

struct Arguments {
  std::string path;
  OpenOptions open;
  bool deep = false;
  bool strict_warnings = false;
};

Style style_of(Severity severity) {
  return severity == Severity::error     ? Style::red
         : severity == Severity::warning ? Style::yellow
                                         : Style::dim;
}

void print_findings(Output& out, std::span<const Finding> findings) {
  for (Severity severity : {Severity::error, Severity::warning, Severity::note}) {
    for (const Finding& finding : findings) {
      if (finding.severity != severity) continue;
      const std::string line = finding.line();
      const std::size_t word = severity_name(severity).size();
      out.print("{}{}\n", out.paint(style_of(severity), line.substr(0, word)), line.substr(word));
    }
  }
}

void print_counts(Output& out, std::span<const Finding> findings) {
  std::map<std::pair<int, ErrorCode>, std::uint64_t> counts;  // the gravest first
  for (const Finding& finding : findings)
    ++counts[{-static_cast<int>(finding.severity), finding.code}];
  Table table({{"findings", Align::right}, {"severity"}, {"code"}, {"meaning"}});
  for (const auto& [key, number] : counts) {
    const auto severity = static_cast<Severity>(-key.first);
    table.add({grouped(number), Cell(std::string(severity_name(severity)), style_of(severity)),
               error_code_name(key.second), error_code_meaning(key.second)});
  }
  out.write("\n");
  table.print(out);
  out.write("\n");
}

int run(Program& program, const Arguments& arguments) {
  const Checkpoint checkpoint = get(open(arguments.path, arguments.open));
  CheckReport report;
  {
    ProgressBar bar("checking");
    CheckOptions options;
    options.depth = arguments.deep ? CheckDepth::data : CheckDepth::headers;
    options.progress = bar.callback();
    report = get(check(checkpoint, options));
  }
  const FindingCounts counts = count(report.findings);
  const std::uint64_t tensors = checkpoint.tensors().size();
  const bool good = report.sound() && !(arguments.strict_warnings && counts.warnings);
  Output& out = program.out;
  if (program.json) {
    Json findings = Json::array();
    for (const Finding& finding : report.findings) findings.push_back(to_json(finding));
    print_json(out, {{"path", arguments.path},
                     {"sound", report.sound()},
                     {"depth", arguments.deep ? "data" : "headers"},
                     {"tensors", tensors},
                     {"layers", checkpoint.size()},
                     {"errors", counts.errors},
                     {"warnings", counts.warnings},
                     {"notes", counts.notes},
                     {"findings", std::move(findings)}});
    return good ? exit_ok : exit_no;
  }
  print_findings(out, report.findings);
  if (report.findings.size() >= many) print_counts(out, report.findings);
  out.print("{}: {}, {}, {}{}\n",
            report.sound() ? out.paint(Style::green, "sound") : out.paint(Style::red, "not sound"),
            counted(tensors, "tensor"), counted(checkpoint.size(), "layer"), counts_text(counts),
            arguments.deep ? "; all data read" : "");
  return good ? exit_ok : exit_no;
}

}  // namespace

void add_check(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("check", "Prove a checkpoint sound, or list what is wrong");
  verb.footer(
      "Exit status: 0 sound, 1 an error was found, 2 the file cannot be opened.\n"
      "docs/errors.md explains each code.\n"
      "Example: parfait check --deep minimax_h3_mixed.safetensors");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_flag("--deep", arguments->deep,
                "Also read all data: NaN, zero scales, codes out of range, zeroed tensors");
  verb.add_flag("--strict-warnings", arguments->strict_warnings, "Exit with 1 for warnings too");
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
