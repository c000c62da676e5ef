// parfait bench: the linear layers' speed on this machine, beside its peaks and its peers.

#include "bench/bench.h"

#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  MachineArguments machine;
  std::vector<std::string> shapes, peers;
  std::vector<std::uint64_t> rows;
  std::uint32_t threads = 0, repeats = 5;
  bool attention = true;
};

std::uint64_t whole_number(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 || value > 1 << 20)
    fail(ErrorCode::plan_option,
         fmt::format("{} is not a whole number from 1 to 1048576", printable(text)));
  return value;
}

// A part of a known shape's name, or NxK.
void add_shapes(const std::string& text, std::vector<bench::Shape>& shapes) {
  const std::size_t before = shapes.size();
  for (const bench::Shape& shape : bench::known_shapes())
    if (shape.name.find(text) != std::string::npos) shapes.push_back(shape);
  if (shapes.size() > before) return;
  const std::size_t x = text.find('x');
  if (x == std::string::npos) {
    std::string known;
    for (const bench::Shape& shape : bench::known_shapes())
      known += fmt::format("{}{}", known.empty() ? "" : ", ", shape.name);
    fail(ErrorCode::plan_option, fmt::format("{} is no shape: a part of {}; or N x K as 4096x3072",
                                             printable(text), known));
  }
  bench::Shape shape{text, whole_number(text.substr(0, x)), whole_number(text.substr(x + 1))};
  if (shape.columns % 256 != 0)
    fail(ErrorCode::plan_option,
         fmt::format("{}: K is {}, and the benchmark's layers are rotated in groups of 256",
                     printable(text), shape.columns));
  shapes.push_back(std::move(shape));
}

int run_bench(Program& program, const Arguments& arguments) {
  bench::Options options;
  for (const std::string& text : arguments.shapes) add_shapes(text, options.shapes);
  options.rows = arguments.rows;
  options.threads = arguments.threads;
  options.repeats = arguments.repeats;
  options.isa = plan_options(arguments.machine).isa;
  options.peers = arguments.peers;
  options.attention = arguments.attention;
  ProgressBar bar("measuring");
  options.progress = bar.callback();
  const bench::Report report = get(bench::run(options));
  program.out.write(program.json ? bench::to_json(report) + "\n" : bench::to_text(report));
  return exit_ok;
}

}  // namespace

void add_bench(CLI::App& app, Program& program) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& verb = *app.add_subcommand(
      "bench", "Measure the linear layers on this machine, beside its peaks and other libraries");
  verb.add_option("--shapes", arguments->shapes,
                  "Shapes: parts of names (klein, \"H3 fc1\") or NxK (default: all known)");
  verb.add_option("--rows", arguments->rows,
                  "Rows of activation, M (default: 1 4 16 64 256 1024 4096)")
      ->check(CLI::Range(1, 1 << 16));
  add_number<std::uint32_t>(verb, "--threads", arguments->threads, 0, 1024,
                            "Threads (default 0: as many as the machine has)");
  add_number<std::uint32_t>(verb, "--repeats", arguments->repeats, 1, 1000,
                            "Repeats; medians are reported (default 5)");
  verb.add_option(
      "--peer", arguments->peers,
      "Command of a program that speaks the protocol of bench/peer.h, to be measured in "
      "the same run; may be given more than once");
  verb.add_flag("!--no-attention", arguments->attention, "Leave attention out");
  add_machine_options(verb, arguments->machine);
  add_json_option(verb, program);
  verb.footer("Example: parfait bench --shapes klein --rows 1 256");
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run_bench(program, *arguments); };
  });
}

}  // namespace parfait::cli
