// parfait plan FILE: how each layer would run, and where.

#include <algorithm>
#include <charconv>
#include <system_error>

#include "cli/table.h"
#include "cli/tp.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

struct Arguments {
  std::string path, layers;
  OpenOptions open;
  MachineArguments machine;
  std::vector<std::uint32_t> ranks = {1};
  TpArguments tp;
};

std::vector<std::uint32_t> parse_ranks(const std::string& text) {
  std::vector<std::uint32_t> numbers;
  const char* const end = text.data() + text.size();
  for (const char* at = text.data();; ++at) {
    std::uint32_t number = 0;
    const auto [next, error] = std::from_chars(at, end, number);
    if (error != std::errc() || (next != end && *next != ','))
      throw CLI::ValidationError(
          "--tp", "takes numbers of ranks, as in 2 or 1,2,4, not " + printable(text));
    numbers.push_back(number);
    if (next == end) return numbers;
    at = next;
  }
}

// --- As text ---

std::uint64_t size_of(const std::vector<Range>& ranges) {
  std::uint64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

// "2 × 3200", "3328 + 3072", "4 × 5376 in 3 parts"
std::string shares_text(const LayerPlan& layer) {
  if (layer.shares.empty()) return "-";
  std::vector<std::uint64_t> sizes;
  std::size_t parts = 0;
  for (const auto& share : layer.shares) {
    sizes.push_back(size_of(share));
    parts = std::max(parts, share.size());
  }
  const bool equal = std::ranges::count(sizes, sizes[0]) == std::ssize(sizes);
  std::string text = equal ? fmt::format("{} × {}", sizes.size(), sizes[0])
                           : fmt::format("{}", fmt::join(sizes, " + "));
  if (parts > 1) text += fmt::format(" in {} parts", parts);
  return text;
}

void print_layers(Output& out, std::span<const LayerPlan* const> layers, std::uint32_t ranks) {
  std::vector<Column> columns = {{"layer"},
                                 {"format"},
                                 {"N × K", Align::right},
                                 {"method"},
                                 {"kernel"},
                                 {"stored", Align::right},
                                 {"resident", Align::right}};
  if (ranks > 1) columns.insert(columns.end(), {{"split"}, {"by rank", Align::right}});
  columns.push_back({"reason"});
  Table table(std::move(columns));
  for (const LayerPlan* layer : layers) {
    Row row = {printable(layer->name, 1000),
               layer->format,
               fmt::format("{} × {}", layer->rows, layer->columns),
               method_name(layer->method),
               layer->kernel,
               bytes_text(layer->stored_bytes),
               bytes_text(layer->resident_bytes)};
    std::string reason = layer->reason;
    if (ranks > 1) {
      row.push_back(Cell(std::string(split_axis_name(layer->split)),
                         layer->split == SplitAxis::replicated ? Style::yellow : Style::plain));
      row.push_back(shares_text(*layer));
      if (!layer->split_reason.empty()) reason += "; split: " + layer->split_reason;
    }
    row.push_back(std::move(reason));
    table.add(std::move(row));
  }
  table.print(out);
}

void print_totals(Output& out, const Plan& plan) {
  Table table({{"format"},
               {"layers", Align::right},
               {"weights", Align::right},
               {"stored", Align::right},
               {"resident", Align::right}});
  std::uint64_t stored = plan.plain_bytes(), resident = plan.plain_bytes();
  for (const FormatTotal& total : plan.totals()) {
    table.add({total.format, grouped(total.layers), millions(total.weights),
               bytes_text(total.stored_bytes), bytes_text(total.resident_bytes)});
    stored += total.stored_bytes;
    resident += total.resident_bytes;
  }
  table.add(
      {"plain tensors", "-", "-", bytes_text(plan.plain_bytes()), bytes_text(plan.plain_bytes())});
  table.add({Cell("all", Style::bold), grouped(plan.layers().size()), "", bytes_text(stored),
             bytes_text(resident)});
  out.write("\n");
  table.print(out);
}

void print_ranks(Output& out, const Plan& plan) {
  const std::vector<std::uint64_t> bytes = plan.rank_bytes();
  if (bytes.size() < 2) return;
  Table table({{"rank", Align::right}, {"resident", Align::right}, {"bytes", Align::right}});
  for (std::size_t rank = 0; rank < bytes.size(); ++rank)
    table.add({grouped(rank), bytes_text(bytes[rank]), grouped(bytes[rank])});
  out.write("\n");
  table.print(out);
}

std::string machine_text(const PlanOptions& options) {
  std::string offered;
  for (Isa isa : options.machine)
    offered += fmt::format("{}{}", offered.empty() ? "" : ", ", isa_name(isa));
  if (options.isa)
    return fmt::format("{} (asked for; there are {})", isa_name(*options.isa), offered);
  return fmt::format("{} (the best of {})", isa_name(options.machine.back()), offered);
}

void print_plan(Output& out, const Plan& plan, std::span<const LayerPlan* const> layers) {
  const std::uint32_t ranks = plan.options().ranks;
  out.print("instruction set: {}; {}\n\n", machine_text(plan.options()), counted(ranks, "rank"));
  print_layers(out, layers, ranks);
  if (layers.size() < plan.layers().size())
    out.print("({} of {}; the totals are of all)\n", layers.size(),
              counted(plan.layers().size(), "layer"));
  print_totals(out, plan);
  print_ranks(out, plan);
  if (!plan.notes().empty()) out.write("\n");
  for (const Finding& note : plan.notes()) out.print("{}\n", note.line());
}

struct SplitCounts {
  std::uint64_t whole = 0, outputs = 0, inputs = 0, replicated = 0;
};

SplitCounts count_splits(const Plan& plan) {
  SplitCounts counts;
  for (const LayerPlan& layer : plan.layers()) {
    counts.whole += layer.split == SplitAxis::whole;
    counts.outputs += layer.split == SplitAxis::outputs;
    counts.inputs += layer.split == SplitAxis::inputs;
    counts.replicated += layer.split == SplitAxis::replicated;
  }
  return counts;
}

void print_summary(Output& out, std::span<const Plan> plans) {
  Table table({{"ranks", Align::right},
               {"whole", Align::right},
               {"by outputs", Align::right},
               {"by inputs", Align::right},
               {"replicated", Align::right},
               {"largest rank", Align::right},
               {"all ranks", Align::right}});
  for (const Plan& plan : plans) {
    const SplitCounts counts = count_splits(plan);
    const std::vector<std::uint64_t> bytes = plan.rank_bytes();
    std::uint64_t sum = 0;
    for (std::uint64_t b : bytes) sum += b;
    table.add({grouped(plan.options().ranks), grouped(counts.whole), grouped(counts.outputs),
               grouped(counts.inputs), grouped(counts.replicated),
               bytes_text(*std::ranges::max_element(bytes)), bytes_text(sum)});
  }
  table.print(out);
}

// --- As JSON ---

Json layer_json(const LayerPlan& layer) {
  Json shares = Json::array();
  for (const auto& share : layer.shares) {
    Json ranges = Json::array();
    for (const Range& range : share) ranges.push_back({range.begin, range.end});
    shares.push_back(std::move(ranges));
  }
  return {{"name", layer.name},
          {"format", layer.format},
          {"kind", layer_kind_name(layer.kind)},
          {"rows", layer.rows},
          {"columns", layer.columns},
          {"method", method_name(layer.method)},
          {"kernel", layer.kernel},
          {"stored_bytes", layer.stored_bytes},
          {"resident_bytes", layer.resident_bytes},
          {"reason", layer.reason},
          {"split", split_axis_name(layer.split)},
          {"split_reason", layer.split_reason},
          {"shares", std::move(shares)},
          {"rank_bytes", to_json(layer.rank_bytes)}};
}

Json plan_json(const Plan& plan, std::span<const LayerPlan* const> layers) {
  Json list = Json::array(), totals = Json::array(), notes = Json::array(), offered = Json::array();
  for (const LayerPlan* layer : layers) list.push_back(layer_json(*layer));
  for (const FormatTotal& total : plan.totals())
    totals.push_back({{"format", total.format},
                      {"layers", total.layers},
                      {"weights", total.weights},
                      {"stored_bytes", total.stored_bytes},
                      {"resident_bytes", total.resident_bytes}});
  for (const Finding& note : plan.notes()) notes.push_back(to_json(note));
  const PlanOptions& options = plan.options();
  for (Isa isa : options.machine) offered.push_back(isa_name(isa));
  const SplitCounts counts = count_splits(plan);
  return {{"ranks", options.ranks},
          {"isa", isa_name(options.isa.value_or(options.machine.back()))},
          {"machine", std::move(offered)},
          {"layers", std::move(list)},
          {"totals", std::move(totals)},
          {"splits",
           {{"whole", counts.whole},
            {"outputs", counts.outputs},
            {"inputs", counts.inputs},
            {"replicated", counts.replicated}}},
          {"plain_bytes", plan.plain_bytes()},
          {"rank_bytes", to_json(plan.rank_bytes())},
          {"notes", std::move(notes)}};
}

std::vector<const LayerPlan*> chosen_layers(const Checkpoint& checkpoint, const Plan& plan,
                                            const std::string& pattern) {
  std::vector<const LayerPlan*> layers;
  if (pattern.empty())
    for (const LayerPlan& layer : plan.layers()) layers.push_back(&layer);
  else
    for (const Layer& layer : get(match_layers(checkpoint, pattern)))
      layers.push_back(plan.find(layer.name()));
  return layers;
}

int run(Program& program, const Arguments& arguments) {
  PlanOptions options = plan_options(arguments.machine);
  set_tp_options(options, arguments.tp);
  const Checkpoint checkpoint = get(open(arguments.path, arguments.open));
  const CheckedCheckpoint checked = require_sound(program, checkpoint, arguments.path);
  std::vector<Plan> plans;
  for (std::uint32_t ranks : arguments.ranks) {
    options.ranks = ranks;
    plans.push_back(tp_plan(checked, options, arguments.tp));
  }
  if (plans.size() == 1) {
    const auto layers = chosen_layers(checkpoint, plans[0], arguments.layers);
    if (program.json)
      print_json(program.out, plan_json(plans[0], layers));
    else
      print_plan(program.out, plans[0], layers);
    return exit_ok;
  }
  if (!program.json) return print_summary(program.out, plans), exit_ok;
  Json array = Json::array();
  for (const Plan& plan : plans)
    array.push_back(plan_json(plan, chosen_layers(checkpoint, plan, arguments.layers)));
  print_json(program.out, {{"plans", std::move(array)}});
  return exit_ok;
}

}  // namespace

void add_plan(CLI::App& app, Program& program) {
  CLI::App& verb =
      *app.add_subcommand("plan", "Say how each layer would run, and where, without reading it");
  verb.footer(
      "Exit status: 0 planned, 1 the file is not sound or --tp-strict forbids the plan, 2 failed.\n"
      "Examples: parfait plan mixed.safetensors --tp 2 --layers 'blocks.0.*'\n"
      "          parfait plan mixed.safetensors --tp 1,2,4,8");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_option_function<std::string>(
          "--tp", [arguments](const std::string& text) { arguments->ranks = parse_ranks(text); },
          "Tensor-parallel ranks; several numbers (1,2,4) give a summary of each")
      ->type_name("N[,N...]");
  add_tp_options(verb, arguments->tp);
  verb.add_option("--layers", arguments->layers, "Show only layers whose names match (* and ?)")
      ->type_name("GLOB");
  add_machine_options(verb, arguments->machine);
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
