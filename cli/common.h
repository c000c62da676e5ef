// What the verbs share: options, exit statuses, the ways in which a command ends early.
#ifndef PARFAIT_CLI_COMMON_H_
#define PARFAIT_CLI_COMMON_H_

#include <CLI/CLI.hpp>
#include <charconv>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cli/output.h"
#include "parfait/parfait.h"

namespace parfait::cli {

using Json = nlohmann::ordered_json;

inline constexpr int exit_ok = 0;
inline constexpr int exit_no = 1;      // the command did its work, and the answer is no
inline constexpr int exit_failed = 2;  // it could not do its work

// One run of the program. The chosen verb sets `run` while arguments are parsed.
struct Program {
  Output out;
  bool json = false;
  std::function<int()> run;
};

// Thrown to end a command.
struct Failure {
  Error error;
};
struct Exit {
  int status;
};

// The value of a Result; throws Failure where there is none.
template <class T>
T get(Result<T> result) {
  if (!result.ok()) throw Failure{std::move(result).error()};
  return std::move(result).value();
}
// Says that the partial file or folder of an output stays, where one does that no other process
// is writing at this moment.
void tell_partial(std::string target);
// The value of a Result of writing `target`.
template <class T>
T get_output(Result<T> result, const std::string& target) {
  if (!result.ok()) tell_partial(target);
  return get(std::move(result));
}
// Ends the command where two of its outputs, of those that are asked for, are one file.
void require_apart(const std::vector<std::string>& outputs);
[[noreturn]] void fail(ErrorCode code, std::string message);

// --json
void add_json_option(CLI::App& verb, Program& program);
// --io, --lenient, --compat, --max-header
void add_open_options(CLI::App& verb, OpenOptions& options);
// --isa and --w4a4-activation. The environment's PARFAIT_ISA stands for an absent --isa.
struct MachineArguments {
  std::string isa;
  std::optional<Activation> w4a4_activation;
};
void add_machine_options(CLI::App& verb, MachineArguments& arguments);
PlanOptions plan_options(const MachineArguments& arguments);

// --resume, of a verb that writes its output over what an interrupted run left of it.
void add_start_option(CLI::App& verb, ShardStart& start);
// "N bytes had been written by an earlier run", if any had.
void print_resumed(Output& out, std::uint64_t bytes);

// An option that takes one of a few words. Target is the words' type or an optional of it.
template <class Value, class Target>
CLI::Option* add_choice(CLI::App& verb, const std::string& name, Target& target,
                        std::vector<std::pair<std::string, Value>> choices, std::string help) {
  std::string words;
  for (const auto& choice : choices) words += (words.empty() ? "" : "|") + choice.first;
  auto set = [&target, choices = std::move(choices), name, words](const std::string& given) {
    for (const auto& [word, value] : choices) {
      if (word != given) continue;
      target = value;
      return;
    }
    throw CLI::ValidationError(name, "takes " + words + ", not " + printable(given));
  };
  return verb.add_option_function<std::string>(name, set, std::move(help))->type_name(words);
}

// An option that takes a whole number of a range; signs and fractions are refused.
template <class Number>
CLI::Option* add_number(CLI::App& verb, const std::string& name, Number& target, Number least,
                        Number most, std::string help) {
  auto set = [&target, name, least, most](const std::string& given) {
    Number number{};
    const char* const end = given.data() + given.size();
    const auto [next, error] = std::from_chars(given.data(), end, number);
    if (error != std::errc() || next != end || number < least || number > most)
      throw CLI::ValidationError(
          name, fmt::format("takes a number from {} to {}, not {}", least, most, printable(given)));
    target = number;
  };
  return verb.add_option_function<std::string>(name, set, std::move(help))->type_name("N");
}

// A size: "6G", "900M", "1.5GiB", or a plain number of bytes; units are powers of 1024.
std::uint64_t parse_size(const std::string& name, const std::string& given);
// An option that takes one. Target is a number of bytes or an optional of it.
template <class Target>
CLI::Option* add_size(CLI::App& verb, const std::string& name, Target& target, std::string help) {
  return verb
      .add_option_function<std::string>(
          name, [&target, name](const std::string& given) { target = parse_size(name, given); },
          std::move(help))
      ->type_name("SIZE");
}

// Checks the headers. Where an error is found, all errors are told and the command ends with
// exit_no.
CheckedCheckpoint require_sound(Program& program, const Checkpoint& checkpoint,
                                const std::string& path);

// --- JSON ---

void print_json(Output& out, const Json& json);
Json to_json(const Finding& finding);
Json to_json(const Error& error);
Json to_json(std::span<const std::uint64_t> numbers);

// --- Findings ---

struct FindingCounts {
  std::uint64_t errors = 0, warnings = 0, notes = 0;
};
FindingCounts count(std::span<const Finding> findings);
std::string counts_text(const FindingCounts& counts);  // "2 errors, 1 note", "no findings"

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_COMMON_H_
