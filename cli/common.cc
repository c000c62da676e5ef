#include "cli/common.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "cli/table.h"

namespace parfait::cli {

void require_apart(const std::vector<std::string>& outputs) {
  std::vector<std::filesystem::path> seen;
  for (const std::string& output : outputs) {
    if (output.empty()) continue;
    std::error_code ignored;
    std::filesystem::path path = std::filesystem::weakly_canonical(output, ignored);
    if (std::ranges::find(seen, path) != seen.end())
      fail(ErrorCode::file_write,
           printable(output, 1000) + ": is named for two outputs; each needs a name of its own");
    seen.push_back(std::move(path));
  }
}

void fail(ErrorCode code, std::string message) { throw Failure{Error{code, std::move(message)}}; }

void add_json_option(CLI::App& verb, Program& program) {
  verb.add_flag("--json", program.json, "Print JSON instead of text");
}

void add_open_options(CLI::App& verb, OpenOptions& options) {
  add_choice<Io>(verb, "--io", options.io, {{"mapped", Io::mapped}, {"pread", Io::pread}},
                 "How files are read");
  verb.add_flag_callback(
      "--lenient", [&options] { options.strictness = Strictness::lenient; },
      "Accept bytes behind the last tensor, with a warning");
  add_choice<Compat>(verb, "--compat", options.compat,
                     {{"none", Compat::none}, {"comfyui", Compat::comfyui}},
                     "Where declarations disagree, read them as this tool does");
  add_number<std::uint64_t>(verb, "--max-header", options.max_header_bytes, 8, 1ull << 40,
                            "Longest header to accept, in bytes (default 100000000)");
}

void add_machine_options(CLI::App& verb, MachineArguments& arguments) {
  verb.add_option("--isa", arguments.isa,
                  "Use this instruction set only (default: the environment's PARFAIT_ISA, or the "
                  "best one)")
      ->type_name("NAME");
  add_choice<Activation>(verb, "--w4a4-activation", arguments.w4a4_activation,
                         {{"int4", Activation::int4}, {"int8", Activation::int8}},
                         "Width to which W4A4 layers quantise their input, whatever the file says");
}

PlanOptions plan_options(const MachineArguments& arguments) {
  PlanOptions options;
  options.w4a4_activation = arguments.w4a4_activation;
  const char* environment = std::getenv("PARFAIT_ISA");
  const std::string name = !arguments.isa.empty() ? arguments.isa : environment ? environment : "";
  if (name.empty()) return options;
  options.isa = parse_isa(name);
  if (options.isa) return options;
  std::string known;
  for (Isa isa : options.machine)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", isa_name(isa));
  fail(ErrorCode::plan_isa,
       fmt::format("{} is no instruction set that {} knows; this machine offers {}",
                   printable(name), arguments.isa.empty() ? "PARFAIT_ISA" : "--isa", known));
}

std::uint64_t parse_size(const std::string& name, const std::string& given) {
  constexpr std::string_view units = "KMGT";
  double number = 0;
  const char* const end = given.data() + given.size();
  const auto [next, error] = std::from_chars(given.data(), end, number);
  std::string_view unit(next, static_cast<std::size_t>(end - next));
  for (const std::string_view suffix : {"iB", "B"})
    if (unit.ends_with(suffix)) unit.remove_suffix(suffix.size());
  const std::size_t power = unit.size() == 1 ? units.find(unit[0]) + 1 : 0;
  const double bytes = number * std::pow(1024.0, static_cast<double>(power));
  if (error != std::errc() || unit.size() > 1 || (unit.size() == 1 && power == 0) ||
      !(bytes >= 1 && bytes < 1e18))
    throw CLI::ValidationError(name, "takes a size such as 6G or 900M, not " + printable(given));
  return static_cast<std::uint64_t>(bytes);
}

void tell_partial(std::string target) {
  while (target.ends_with('/')) target.pop_back();
  std::error_code ignored;
  if (!std::filesystem::exists(target + ".partial.journal", ignored)) return;
  const int fd = ::open((target + ".partial").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return;
  if (::flock(fd, LOCK_SH | LOCK_NB) == 0)
    complain(printable(target, 1000) + ".partial stays; the same command with --resume goes on");
  ::close(fd);
}

void add_start_option(CLI::App& verb, ShardStart& start) {
  verb.add_flag_callback(
      "--resume", [&start] { start = ShardStart::resume; },
      "Go on from what a run that was ended left behind; leave it behind on Ctrl-C");
}

void print_resumed(Output& out, std::uint64_t bytes) {
  if (bytes > 0) out.print("{} had been written by an earlier run\n", bytes_text(bytes));
}

CheckedCheckpoint require_sound(Program& program, const Checkpoint& checkpoint,
                                const std::string& path) {
  const CheckReport report = get(check(checkpoint));
  if (report.sound()) return *report.checked;
  const FindingCounts counts = count(report.findings);
  const Error error{ErrorCode::not_sound,
                    fmt::format("{}: is not sound: {}; `parfait check` lists all findings",
                                printable(path, 1000), counts_text(counts))};
  Json findings = Json::array();
  for (const Finding& finding : report.findings) {
    if (finding.severity != Severity::error) continue;
    if (program.json)
      findings.push_back(to_json(finding));
    else
      tell(finding.line());
  }
  complain(error.message);
  if (program.json)
    print_json(program.out, {{"error", to_json(error)}, {"findings", std::move(findings)}});
  throw Exit{exit_no};
}

void print_json(Output& out, const Json& json) {
  // A path need not be UTF-8; everything else is.
  out.write(json.dump(2, ' ', false, Json::error_handler_t::replace));
  out.write("\n");
  out.flush();
}

Json to_json(const Finding& finding) {
  return {{"severity", severity_name(finding.severity)},
          {"code", error_code_name(finding.code)},
          {"file", finding.file},
          {"layer", finding.layer},
          {"tensor", finding.tensor},
          {"got", finding.got},
          {"expected", finding.expected},
          {"message", finding.message}};
}

Json to_json(const Error& error) {
  return {{"code", error_code_name(error.code)}, {"message", error.message}};
}

Json to_json(std::span<const std::uint64_t> numbers) {
  Json array = Json::array();
  for (std::uint64_t number : numbers) array.push_back(number);
  return array;
}

FindingCounts count(std::span<const Finding> findings) {
  FindingCounts counts;
  for (const Finding& finding : findings) {
    switch (finding.severity) {
      case Severity::error:
        ++counts.errors;
        break;
      case Severity::warning:
        ++counts.warnings;
        break;
      case Severity::note:
        ++counts.notes;
        break;
    }
  }
  return counts;
}

std::string counts_text(const FindingCounts& counts) {
  std::string text;
  const auto add = [&](std::uint64_t number, std::string_view noun) {
    if (number) text += fmt::format("{}{}", text.empty() ? "" : ", ", counted(number, noun));
  };
  add(counts.errors, "error");
  add(counts.warnings, "warning");
  add(counts.notes, "note");
  return text.empty() ? "no findings" : text;
}

}  // namespace parfait::cli
