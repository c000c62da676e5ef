// parfait merge DIR -o FILE: the checkpoint that `parfait shard` cut, byte for byte.

#include "cli/tp.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string folder, out;
  MergeOptions merge;
};

int run(Program& program, const Arguments& arguments) {
  allow_many_files();
  MergeOptions options = arguments.merge;
  MergeReport report;
  {
    ProgressBar bar("merging");
    options.progress = bar.callback();
    report = get_output(merge(arguments.folder, arguments.out, options), arguments.out);
  }
  if (program.json) {
    Json files = Json::array();
    for (const WrittenFile& file : report.files)
      files.push_back({{"path", file.path}, {"bytes", file.bytes}});
    print_json(program.out, {{"folder", arguments.folder},
                             {"resumed_bytes", report.resumed_bytes},
                             {"files", std::move(files)}});
    return exit_ok;
  }
  for (const WrittenFile& file : report.files)
    program.out.print("{}: {}, byte for byte the source\n", printable(file.path, 1000),
                      bytes_text(file.bytes));
  print_resumed(program.out, report.resumed_bytes);
  return exit_ok;
}

}  // namespace

void add_merge(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("merge", "Put together again what `parfait shard` cut, byte for byte");
  verb.footer(
      "Refuses ranks that are missing, of another set, or edited.\n"
      "Exit status: 0 written, 2 failed.\n"
      "Example: parfait merge mixed-tp4 -o mixed.safetensors");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("DIR", arguments->folder, "A folder that `parfait shard` wrote")->required();
  verb.add_option("-o,--output", arguments->out,
                  "The file to write; of a source of several files, the folder")
      ->required()
      ->type_name("FILE");
  add_start_option(verb, arguments->merge.start);
  add_choice<Io>(verb, "--io", arguments->merge.io, {{"mapped", Io::mapped}, {"pread", Io::pread}},
                 "How files are read");
  add_number<std::uint64_t>(verb, "--max-header", arguments->merge.max_header_bytes, 8, 1ull << 40,
                            "Longest header to accept, in bytes (default 100000000)");
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
