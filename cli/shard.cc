// parfait shard FILE --tp N -o DIR: one checkpoint for each tensor-parallel rank.

#include "cli/table.h"
#include "cli/tp.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string path, out;
  std::uint32_t ranks = 0;
  ShardStart start = ShardStart::afresh;
  OpenOptions open;
  TpArguments tp;
};

int run(Program& program, const Arguments& arguments) {
  PlanOptions options;
  options.ranks = arguments.ranks;
  set_tp_options(options, arguments.tp);
  const Checkpoint checkpoint = get(open(arguments.path, arguments.open));
  const CheckedCheckpoint checked = require_sound(program, checkpoint, arguments.path);
  const Plan plan = tp_plan(checked, options, arguments.tp);
  allow_many_files();
  ShardReport report;
  {
    ProgressBar bar("sharding");
    report =
        get_output(shard(plan, arguments.out,
                         {arguments.path, arguments.open.compat, arguments.start, bar.callback()}),
                   arguments.out);
  }
  if (program.json) {
    Json ranks = Json::array();
    for (const WrittenFile& file : report.ranks)
      ranks.push_back({{"path", file.path}, {"bytes", file.bytes}});
    print_json(program.out, {{"out", arguments.out},
                             {"source_bytes", report.source_bytes},
                             {"resumed_bytes", report.resumed_bytes},
                             {"layers_split", report.layers_split},
                             {"layers_replicated", report.layers_replicated},
                             {"ranks", std::move(ranks)}});
    return exit_ok;
  }
  Table table({{"rank"}, {"bytes", Align::right}});
  for (const WrittenFile& file : report.ranks)
    table.add({printable(file.path, 1000), bytes_text(file.bytes)});
  table.print(program.out);
  print_resumed(program.out, report.resumed_bytes);
  program.out.print("\n{} split, {} on every rank; `parfait merge` gives back the {} of {}\n",
                    counted(report.layers_split, "layer"), grouped(report.layers_replicated),
                    bytes_text(report.source_bytes), printable(arguments.path, 1000));
  return exit_ok;
}

}  // namespace

void add_shard(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("shard", "Cut a checkpoint for tensor-parallel ranks, a file for each");
  verb.footer(
      "Cut as `parfait plan --tp N` says. A layer cut by inputs has its bias on rank 0, and zeros "
      "on the others,\nso that the sum of the ranks is right. `parfait merge` is the inverse, byte "
      "for byte.\n"
      "Exit status: 0 written, 1 the file is not sound or --tp-strict forbids the plan, 2 failed.\n"
      "Example: parfait shard mixed.safetensors --tp 4 -o mixed-tp4");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  add_number<std::uint32_t>(verb, "--tp", arguments->ranks, 1, 1024, "Tensor-parallel ranks")
      ->required();
  verb.add_option("-o,--output", arguments->out,
                  "The folder to write: new, empty, or of an earlier `parfait shard`")
      ->required()
      ->type_name("DIR");
  add_start_option(verb, arguments->start);
  add_tp_options(verb, arguments->tp);
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
