// parfait formats: the table of formats.

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  bool markdown = false;
};

int print_as_json(Program& program) {
  Json array = Json::array();
  for (const FormatInfo& format : formats_table())
    array.push_back({{"name", format.name},
                     {"bits_per_weight", format.weight_bits},
                     {"kinds", format.kinds},
                     {"method", format.method},
                     {"kernels", format.kernels},
                     {"summary", format.summary},
                     {"page", fmt::format("docs/formats/{}.md", format.folder)}});
  print_json(program.out, {{"formats", std::move(array)}});
  return exit_ok;
}

// What the README holds between its markers.
int print_markdown(Program& program) {
  program.out.write(
      "| format | bits a weight | layers | linear method | kernels | what it is |\n"
      "|---|---|---|---|---|---|\n");
  for (const FormatInfo& format : formats_table())
    program.out.print("| [`{}`](docs/formats/{}.md) | {} | {} | {} | {} | {} |\n", format.name,
                      format.folder, format.weight_bits, format.kinds, format.method,
                      format.kernels, format.summary);
  return exit_ok;
}

int run(Program& program, const Arguments& arguments) {
  if (program.json) return print_as_json(program);
  if (arguments.markdown) return print_markdown(program);
  Table table({{"format"},
               {"bits/weight", Align::right},
               {"layers"},
               {"linear method"},
               {"kernels"},
               {"what it is"}});
  for (const FormatInfo& format : formats_table())
    table.add({format.name, format.weight_bits, format.kinds, format.method, format.kernels,
               format.summary});
  table.print(program.out);
  return exit_ok;
}

}  // namespace

void add_formats(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("formats", "List the formats and how their layers run");
  verb.footer("Example: parfait formats");
  auto arguments = std::make_shared<Arguments>();
  verb.add_flag("--markdown", arguments->markdown, "Print the table as Markdown, as in the README");
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
