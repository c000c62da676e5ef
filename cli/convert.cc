// parfait convert SRC -o DST: other formats, containers, names or shards.

#include "parfait/convert.h"

#include <algorithm>
#include <cmath>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string source, target;
  OpenOptions open;
  ConvertOptions convert;
  bool gguf = false;
};

Json report_json(const ConvertReport& report, const Arguments& arguments) {
  Json layers = Json::array();
  for (const ConvertedLayer& layer : report.layers)
    layers.push_back({{"layer", layer.name},
                      {"from", layer.from},
                      {"to", layer.to},
                      {"rows", layer.rows},
                      {"columns", layer.columns},
                      {"bytes_before", layer.bytes_before},
                      {"bytes_after", layer.bytes_after},
                      {"kept", layer.kept}});
  return {{"source", arguments.source}, {"files", report.files},     {"tensors", report.tensors},
          {"bytes", report.bytes},      {"resumed", report.resumed}, {"layers", std::move(layers)},
          {"notes", report.notes}};
}

// One line for each pair of formats.
void print_changes(Output& out, const ConvertReport& report) {
  struct Change {
    std::string from, to;
    std::uint64_t layers = 0, before = 0, after = 0;
  };
  std::vector<Change> changes;
  for (const ConvertedLayer& layer : report.layers) {
    auto it = std::ranges::find_if(
        changes, [&](const Change& c) { return c.from == layer.from && c.to == layer.to; });
    if (it == changes.end()) it = changes.insert(it, {layer.from, layer.to});
    ++it->layers;
    it->before += layer.bytes_before;
    it->after += layer.bytes_after;
  }
  if (changes.empty()) return;
  Table table({{"from"},
               {"to"},
               {"layers", Align::right},
               {"before", Align::right},
               {"after", Align::right}});
  for (const Change& change : changes)
    table.add({change.from, change.from == change.to ? "the same" : change.to,
               grouped(change.layers), bytes_text(change.before), bytes_text(change.after)});
  table.print(out);
}

void print_report(Output& out, const ConvertReport& report) {
  print_changes(out, report);
  for (const ConvertedLayer& layer : report.layers)
    if (!layer.kept.empty()) out.print("kept as {}: {}\n", layer.to, printable(layer.kept, 500));
  for (const std::string& note : report.notes) out.print("note: {}\n", note);
  if (report.resumed)
    out.print("{} had been written by an earlier run\n",
              counted(report.resumed, "layer or tensor"));
  for (const std::string& file : report.files) out.print("wrote {}\n", printable(file, 1000));
  out.print("{}, {} of data\n", counted(report.tensors, "tensor"), bytes_text(report.bytes));
}

int run(Program& program, Arguments& arguments) {
  const Checkpoint source = get(open(arguments.source, arguments.open));
  const CheckedCheckpoint checked = require_sound(program, source, arguments.source);
  if (arguments.gguf) arguments.convert.container = ConvertOptions::Container::gguf;
  ProgressBar bar("converting");
  arguments.convert.progress = bar.callback();
  const ConvertReport report = get_output(
      convert_checkpoint(checked, arguments.target, arguments.convert), arguments.target);
  if (program.json)
    print_json(program.out, report_json(report, arguments));
  else
    print_report(program.out, report);
  return exit_ok;
}

}  // namespace

void add_convert(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand(
      "convert", "Write a checkpoint in other formats, another container, other names or shards");
  verb.footer("Formats: " + convert_targets() +
              "; in a GGUF file f32, f16, bf16, q8_0, q4_0.\n"
              "Settings may follow the format: group=N (ConvRot; 0: not rotated), scale_group=N, "
              "scale=row|tensor, activation=int4|int8.\n"
              "What a format cannot hold is kept and listed with the reason.\n"
              "Examples: parfait convert mixed.safetensors -o plain.safetensors --to bf16\n"
              "          parfait convert bf16.safetensors -o q8.gguf --to q8_0\n"
              "          parfait convert comfy.safetensors -o transformer --names diffusers "
              "--max-shard 4GB");
  auto arguments = std::make_shared<Arguments>();
  ConvertOptions& options = arguments->convert;
  verb.add_option("SRC", arguments->source, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_option("-o,--output", arguments->target,
                  "The file to write; with --max-shard a new folder")
      ->required()
      ->type_name("DST");
  verb.add_option(
          "--to", options.to,
          "The format to convert layers to, with its settings (default: each keeps its own)")
      ->type_name("FORMAT");
  verb.add_option("--layers", options.layers,
                  "Convert the layers that match (* and ?); may be given several times (default: "
                  "the low-bit layers, or all linear ones where the file has none)")
      ->type_name("PATTERN")
      ->allow_extra_args(false);
  add_choice<DType>(verb, "--plain", options.plain,
                    {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}},
                    "The type of biases, of floats outside layers and of plain layers that are "
                    "kept (default: as they are)");
  add_choice<ConvertOptions::Names>(
      verb, "--names", options.names,
      {{"comfy", ConvertOptions::Names::comfy}, {"diffusers", ConvertOptions::Names::diffusers}},
      "The names of a FLUX.2, Z-Image or MiniMax-H3 transformer's tensors, or an image "
      "auto-encoder's");
  add_choice<ConvertOptions::Qkv>(
      verb, "--qkv", options.qkv,
      {{"in-thirds", ConvertOptions::Qkv::in_thirds}, {"by-head", ConvertOptions::Qkv::by_head}},
      "With --names: how the rows of a MiniMax-H3 source's fused q, k and v lie; by-head in "
      "MiniMaxAI's own shards (default in-thirds)");
  verb.add_flag("--gguf", arguments->gguf, "Write a GGUF file (default where DST ends in .gguf)");
  verb.add_flag_callback(
      "--lossless", [&options] { options.loss = ConvertOptions::Loss::refused; },
      "Refuse to change any decoded value");
  add_size(verb, "--max-shard", options.max_shard,
           "Write shards of at most this much data, and their index");
  add_size(verb, "--max-memory", options.max_memory, "How much memory to use (default 2GB)");
  add_number<unsigned>(verb, "--threads", options.threads, 1, 1024,
                       "How many threads to use (default: all)");
  verb.add_flag_callback(
      "--resume", [&options] { options.start = ConvertOptions::Start::resume; },
      "Go on from what a run that was ended left behind; leave it behind on Ctrl-C");
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
