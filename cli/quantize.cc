// parfait quantize SRC -o DST: a checkpoint into a mixture of low-bit formats, by a recipe.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "cli/quantize_html.h"
#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string path, out, recipe = "auto", format, html, show_recipe, like;
  OpenOptions open;
  MachineArguments machine;
  QuantizeOptions options;
  QuantizeRun run;
  bool dry_run = false;
};

// A preset's name, or a file's text.
void read_recipe(Arguments& a) {
  const std::vector<RecipePreset> presets = recipe_presets();
  a.options.recipe = a.recipe;
  std::error_code ignored;
  if (a.recipe == "auto" ||
      std::ranges::find(presets, a.recipe, &RecipePreset::name) != presets.end() ||
      !std::filesystem::exists(a.recipe, ignored))
    return;  // a name that is neither is the library's to refuse
  std::ifstream in(a.recipe, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.good() && !in.eof())
    fail(ErrorCode::file_read, printable(a.recipe, 1000) + ": the recipe cannot be read");
  a.options.recipe.clear();
  a.options.recipe_text = std::move(text);
}

int show_recipe(Program& program, const std::string& name) {
  for (const RecipePreset& preset : recipe_presets())
    if (preset.name == name) return program.out.write(preset.text), exit_ok;
  std::string names;
  for (const RecipePreset& preset : recipe_presets())
    names += (names.empty() ? "" : ", ") + std::string(preset.name);
  fail(ErrorCode::recipe_syntax,
       fmt::format("there is no preset {}; there are {}", printable(name), names));
}

double bits(std::uint64_t bytes, std::uint64_t weights) {
  return weights ? static_cast<double>(bytes) * 8 / static_cast<double>(weights) : 0;
}

void print_plan(Program& program, const QuantizePlan& plan) {
  Table layers({{"layer"}, {"from"}, {"to"}, {"bytes", Align::right}, {"why"}});
  for (const QuantizeLayer& layer : plan.layers())
    layers.add({printable(layer.name), layer.from,
                layer.kept               ? "kept"
                : layer.settings.empty() ? layer.to
                                         : layer.to + ", " + layer.settings,
                grouped(layer.bytes),
                layer.rule ? fmt::format("{} (line {})",
                                         layer.reason.empty() ? "as the recipe says" : layer.reason,
                                         layer.rule)
                           : layer.reason});
  layers.print(program.out);
  program.out.write("\n");
  Table rules({{"rule"},
               {"layers", Align::right},
               {"bytes before", Align::right},
               {"after", Align::right}});
  for (const QuantizeRule& rule : plan.rules())
    rules.add({printable(rule.text), grouped(rule.layers), grouped(rule.source_bytes),
               grouped(rule.bytes)});
  rules.print(program.out);
}

void print_kept(Program& program, const QuantizePlan& plan) {
  for (const QuantizeLayer& layer : plan.layers())
    if (layer.kept && layer.reason != "as the recipe says")
      program.out.print("kept {}: {}\n", printable(layer.name), layer.reason);
}

void print_report(Program& program, const QuantizeReport& report) {
  Table table({{"layer"},
               {"format"},
               {"bytes", Align::right},
               {"relative L2", Align::right},
               {"SQNR dB", Align::right},
               {"max error", Align::right},
               {"s", Align::right}});
  for (const LayerReport& layer : report.layers)
    table.add({printable(layer.name),
               layer.settings.empty() ? layer.format : layer.format + ", " + layer.settings,
               grouped(layer.bytes), fmt::format("{:.5f}", layer.relative_l2),
               std::isfinite(layer.sqnr_db) ? fmt::format("{:.2f}", layer.sqnr_db) : "exact",
               fmt::format("{:.3g}", layer.max_error), fmt::format("{:.2f}", layer.seconds)});
  if (!table.empty()) table.print(program.out);
}

Json plan_json(const QuantizePlan& plan) {
  Json layers = Json::array(), rules = Json::array();
  for (const QuantizeLayer& layer : plan.layers())
    layers.push_back({{"layer", layer.name},
                      {"kind", layer_kind_name(layer.kind)},
                      {"rows", layer.rows},
                      {"columns", layer.columns},
                      {"from", layer.from},
                      {"to", layer.to},
                      {"settings", layer.settings},
                      {"kept", layer.kept},
                      {"reason", layer.reason},
                      {"rule", layer.rule},
                      {"source_bytes", layer.source_bytes},
                      {"bytes", layer.bytes}});
  for (const QuantizeRule& rule : plan.rules())
    rules.push_back({{"line", rule.line},
                     {"rule", rule.text},
                     {"layers", rule.layers},
                     {"weights", rule.weights},
                     {"source_bytes", rule.source_bytes},
                     {"bytes", rule.bytes}});
  return {{"recipe", plan.recipe()},
          {"warnings", std::vector<std::string>(plan.warnings().begin(), plan.warnings().end())},
          {"quantized", plan.quantized()},
          {"bits_per_weight", plan.bits_per_weight()},
          {"source_bytes", plan.source_bytes()},
          {"bytes", plan.bytes()},
          {"rules", std::move(rules)},
          {"layers", std::move(layers)}};
}

Json report_json(const QuantizeReport& report) {
  Json layers = Json::array();
  for (const LayerReport& layer : report.layers)
    layers.push_back({{"layer", layer.name},
                      {"format", layer.format},
                      {"settings", layer.settings},
                      {"weights", layer.weights},
                      {"source_bytes", layer.source_bytes},
                      {"bytes", layer.bytes},
                      {"bits_per_weight", bits(layer.bytes, layer.weights)},
                      {"relative_l2", layer.relative_l2},
                      {"sqnr_db", std::isfinite(layer.sqnr_db) ? Json(layer.sqnr_db) : Json()},
                      {"max_error", layer.max_error},
                      {"seconds", layer.seconds},
                      {"calibrated", layer.calibrated},
                      {"resumed", layer.resumed}});
  return {{"source_bytes", report.source_bytes},
          {"bytes", report.bytes},
          {"relative_l2", report.relative_l2},
          {"seconds", report.seconds},
          {"layers", std::move(layers)}};
}

int run(Program& program, Arguments& a) {
  if (!a.show_recipe.empty()) return show_recipe(program, a.show_recipe);
  if (a.path.empty()) fail(ErrorCode::plan_option, "quantize needs a SRC");
  if (a.out.empty() && !a.dry_run)
    fail(ErrorCode::plan_option, "quantize needs -o DST, or --dry-run");
  read_recipe(a);
  if (!a.format.empty()) a.options.default_format = a.format;
  const Checkpoint checkpoint = get(open(a.path, a.open));
  const CheckedCheckpoint checked = require_sound(program, checkpoint, a.path);
  a.run.isa = plan_options(a.machine).isa;
  a.options.threads = a.run.threads;
  std::optional<ProgressBar> bar;
  if (a.options.target_bits || a.options.target_bytes) {
    bar.emplace("measuring");
    a.options.progress = bar->callback();
  }
  const QuantizePlan plan = get(plan_quantize(checked, a.options));
  bar.reset();
  for (const std::string& warning : plan.warnings()) complain(warning);
  if (a.dry_run) {
    if (program.json) return print_json(program.out, plan_json(plan)), exit_ok;
    print_plan(program, plan);
    program.out.print("\n{} of {} quantised, {:.3f} bits a weight: {} would become {}\n",
                      plan.quantized(), counted(plan.layers().size(), "layer"),
                      plan.bits_per_weight(), bytes_text(plan.source_bytes()),
                      bytes_text(plan.bytes()));
    return exit_ok;
  }
  require_apart({a.out, a.html});
  if (!a.html.empty()) get(check_target(a.html, OutputKind::html));
  bar.emplace("quantising");
  a.run.progress = bar->callback();
  const QuantizeReport report = get_output(quantize(plan, a.out, a.run), a.out);
  bar.reset();
  if (!a.html.empty()) get(write_html(a.html, quantize_html(a.out, plan, report)));
  if (program.json) {
    Json json = {{"out", a.out}, {"plan", plan_json(plan)}, {"report", report_json(report)}};
    return print_json(program.out, json), exit_ok;
  }
  print_report(program, report);
  print_kept(program, plan);
  program.out.print(
      "{}: {} by recipe {}, {:.3f} bits a weight, relative L2 {:.5f}; {} became {} in {:.1f} s\n",
      printable(a.out, 1000), counted(report.layers.size(), "layer"), plan.recipe(),
      plan.bits_per_weight(), report.relative_l2, bytes_text(report.source_bytes),
      bytes_text(report.bytes), report.seconds);
  return exit_ok;
}

}  // namespace

void add_quantize(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("quantize", "Write a checkpoint anew in low-bit formats, by a recipe");
  verb.footer(
      "Each layer is read back and decoded before the file gets its name. docs/quantize.md has "
      "the\n"
      "recipes' syntax.\n"
      "Example: parfait quantize klein_bf16.safetensors -o klein.safetensors --target-bits 5");
  auto a = std::make_shared<Arguments>();
  verb.add_option("SRC", a->path, "A safetensors file, a shard index, or a folder");
  verb.add_option("-o,--output", a->out, "The safetensors file to write")->type_name("DST");
  verb.add_option("--recipe", a->recipe,
                  "A recipe's file, or a preset's name (default auto: by the tensors' names)")
      ->type_name("FILE|NAME");
  verb.add_option("--format", a->format,
                  "What `default` means in the recipe: a format and its options (default "
                  "int8_tensorwise)")
      ->type_name("FORMAT");
  verb.add_option("--show-recipe", a->show_recipe, "Print a preset's text and end")
      ->type_name("NAME");
  verb.add_option_function<double>(
          "--target-bits",
          [a](double value) {
            if (!(value > 0 && value <= 64))
              throw CLI::ValidationError("--target-bits", "takes bits a weight, such as 5.5");
            a->options.target_bits = value;
          },
          "Choose W4A4, W4A8, W6A8 or INT8 for each layer by measured error: at most so many bits "
          "a weight")
      ->type_name("B");
  add_size(verb, "--target-size", a->options.target_bytes,
           "The same, for a file of at most this size, as 6G");
  add_choice<EncodeLike>(verb, "--like", a->options.like,
                         {{"f32", EncodeLike::f32}, {"kitchen-bf16", EncodeLike::source}},
                         "Round as the weight widened to float gives it, or as comfy-kitchen does "
                         "in the weight's own dtype (default f32)");
  add_choice<Quality>(verb, "--quality", a->options.quality,
                      {{"kitchen", Quality::kitchen}, {"best", Quality::best}},
                      "Codes as comfy-kitchen makes them, or with less error in more time "
                      "(default kitchen)");
  verb.add_option_function<std::string>(
          "--calibration",
          [a](const std::string& path) {
            a->options.calibration = path;
            a->options.quality = Quality::best;
          },
          "Rows of real inputs by layer, which parfait generate --capture writes: least error of "
          "the outputs (takes --quality best)")
      ->type_name("FILE");
  verb.add_flag_callback(
      "--requantize", [a] { a->options.requantize = Requantize::allow; },
      "Also encode layers that are quantised already");
  verb.add_flag("--dry-run", a->dry_run, "Print the plan, bytes by rule and layer, and end");
  verb.add_flag_callback(
      "--resume", [a] { a->run.resume = Resume::yes; },
      "Go on from a run that was interrupted, and leave the partial file if this one is");
  verb.add_option("--html", a->html, "Also write the report as a page")->type_name("FILE");
  add_number<std::uint32_t>(verb, "--threads", a->run.threads, 0, 1024,
                            "Threads (default: as many as the machine has)");
  add_size(verb, "--max-memory", a->run.max_memory,
           "Memory that the work may take, as 6G (default 2G)");
  verb.add_option("--isa", a->machine.isa,
                  "Use this instruction set only (default: the environment's PARFAIT_ISA, or the "
                  "best one); it changes no byte")
      ->type_name("NAME");
  add_open_options(verb, a->open);
  add_json_option(verb, program);
  verb.callback([&program, a] { program.run = [&program, a] { return run(program, *a); }; });
}

}  // namespace parfait::cli
