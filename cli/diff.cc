// parfait diff A B: the layers in which two checkpoints differ.

#include <set>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string a, b;
  OpenOptions open;
};

int run(Program& program, const Arguments& arguments) {
  const Checkpoint a = get(open(arguments.a, arguments.open));
  const Checkpoint b = get(open(arguments.b, arguments.open));
  std::vector<LayerDifference> differences;
  {
    ProgressBar bar("comparing");
    differences = get(diff(a, b, bar.callback()));
  }
  const int status = differences.empty() ? exit_ok : exit_no;
  Output& out = program.out;
  if (program.json) {
    Json array = Json::array();
    for (const LayerDifference& difference : differences)
      array.push_back({{"layer", difference.layer},
                       {"what", difference.what},
                       {"a", difference.a},
                       {"b", difference.b}});
    print_json(out, {{"a", arguments.a},
                     {"b", arguments.b},
                     {"same", differences.empty()},
                     {"differences", std::move(array)}});
    return status;
  }
  if (differences.empty()) {
    out.print("same: {}, {}\n", counted(a.size(), "layer"),
              counted(a.plain_tensors().size(), "plain tensor"));
    return status;
  }
  Table table({{"layer or tensor"}, {"differs in"}, {"a"}, {"b"}});
  std::set<std::string_view> names;
  for (const LayerDifference& difference : differences) {
    names.insert(difference.layer);
    table.add({printable(difference.layer, 1000), difference.what, printable(difference.a, 1000),
               printable(difference.b, 1000)});
  }
  table.print(out);
  out.print("\ndifferent: {} in {}\n", counted(differences.size(), "difference"),
            counted(names.size(), "place"));
  return status;
}

}  // namespace

void add_diff(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("diff", "List the layers whose format, shape, scales or bytes differ");
  verb.footer(
      "Exit status: 0 the same, 1 different, 2 a file cannot be opened.\n"
      "Example: parfait diff base.safetensors finetune.safetensors");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("A", arguments->a, "A checkpoint")->required();
  verb.add_option("B", arguments->b, "Another one")->required();
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
