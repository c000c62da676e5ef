// parfait inspect FILE: what a checkpoint is.

#include <map>

#include "cli/table.h"
#include "cli/tensors.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::size_t longest_metadata = 160;  // bytes of a value that are shown as text

struct Arguments {
  std::string path;
  OpenOptions open;
  std::string layers;
  bool tensors = false;
};

struct Total {
  std::uint64_t layers = 0, stored_bytes = 0;
  double weights = 0;

  void add(const Layer& layer) {
    ++layers;
    stored_bytes += layer.stored_bytes();
    weights += static_cast<double>(layer.rows()) * static_cast<double>(layer.columns());
  }
  double bits() const { return weights > 0 ? 8 * static_cast<double>(stored_bytes) / weights : 0; }
};

struct DTypeTotal {
  std::uint64_t tensors = 0, bytes = 0;
};

// What is printed, gathered once for both ways of printing it.
struct Contents {
  Checkpoint checkpoint;
  std::vector<Layer> layers;                               // those that were asked for
  std::vector<std::pair<std::string_view, Total>> totals;  // by format, in the table's order
  Total total;
  std::vector<TensorInfo> plain;
  std::map<DType, DTypeTotal> plain_by_dtype;
  std::uint64_t plain_bytes = 0;
};

Contents gather(const Arguments& arguments) {
  Contents contents{get(open(arguments.path, arguments.open)), {}, {}, {}, {}, {}};
  const Checkpoint& checkpoint = contents.checkpoint;
  if (arguments.layers.empty())
    for (Layer layer : checkpoint) contents.layers.push_back(layer);
  else
    contents.layers = get(match_layers(checkpoint, arguments.layers));
  std::map<std::string_view, Total> by_format;
  for (const Layer& layer : contents.layers) {
    by_format[layer.format()].add(layer);
    contents.total.add(layer);
  }
  for (const FormatInfo& format : formats_table())
    if (const auto it = by_format.find(format.name); it != by_format.end())
      contents.totals.push_back(*it);
  contents.plain = checkpoint.plain_tensors();
  for (const TensorInfo& tensor : contents.plain) {
    DTypeTotal& total = contents.plain_by_dtype[tensor.dtype];
    ++total.tensors;
    total.bytes += tensor.bytes;
    contents.plain_bytes += tensor.bytes;
  }
  return contents;
}

std::string number_or_dash(std::uint64_t number) {
  return number ? fmt::format("{}", number) : "-";
}

void print_layers(Output& out, const Contents& contents) {
  Table table({{"layer"},
               {"format"},
               {"kind"},
               {"N × K", Align::right},
               {"rotated by", Align::right},
               {"scale group", Align::right},
               {"stored", Align::right},
               {"bits/weight", Align::right}});
  for (const Layer& layer : contents.layers)
    table.add({printable(layer.name(), 1000), layer.format(), layer_kind_name(layer.kind()),
               fmt::format("{} × {}", layer.rows(), layer.columns()),
               number_or_dash(layer.rotate_group()), number_or_dash(layer.scale_group()),
               bytes_text(layer.stored_bytes()), fmt::format("{:.2f}", layer.bits_per_weight())});
  if (table.empty()) return;
  out.write("\n");
  table.print(out);
}

void print_totals(Output& out, const Contents& contents) {
  Table table({{"format"},
               {"layers", Align::right},
               {"weights", Align::right},
               {"stored", Align::right},
               {"bits/weight", Align::right}});
  const auto add = [&](std::string_view name, const Total& total, Style style) {
    table.add({Cell(std::string(name), style), grouped(total.layers),
               millions(static_cast<std::uint64_t>(total.weights)), bytes_text(total.stored_bytes),
               fmt::format("{:.2f}", total.bits())});
  };
  for (const auto& [name, total] : contents.totals) add(name, total, Style::plain);
  if (table.empty()) return;
  if (contents.totals.size() > 1) add("all layers", contents.total, Style::bold);
  out.write("\n");
  table.print(out);
}

void print_plain(Output& out, const Contents& contents) {
  if (contents.plain.empty()) return;
  Table table({{"plain tensors"}, {"number", Align::right}, {"stored", Align::right}});
  for (const auto& [dtype, total] : contents.plain_by_dtype)
    table.add({dtype_name(dtype), grouped(total.tensors), bytes_text(total.bytes)});
  out.write("\n");
  table.print(out);
}

void print_tensors(Output& out, const Contents& contents) {
  Table table({{"tensor"}, {"part of"}, {"dtype"}, {"shape"}, {"stored", Align::right}});
  const auto add = [&](const TensorInfo& tensor, std::string_view part) {
    std::string shape = shape_text(tensor.shape);
    if (const auto value = scalar_text(contents.checkpoint, tensor))
      shape += " = " + *value;
    else if (tensor.bytes == 0)
      shape += " (empty)";
    table.add({printable(tensor.name, 1000), std::string(part), dtype_name(tensor.dtype),
               std::move(shape), bytes_text(tensor.bytes)});
  };
  for (const Layer& layer : contents.layers)
    for (const Layer::Part& part : layer.parts())
      add(part.tensor, fmt::format("{} {}", layer.format(), part.role));
  for (const TensorInfo& tensor : contents.plain) add(tensor, "no layer");
  out.write("\n");
  table.print(out);
}

void print_files(Output& out, const std::vector<ShardInfo>& shards) {
  if (shards.size() < 2) return;
  Table table(
      {{"file"}, {"bytes", Align::right}, {"header", Align::right}, {"tensors", Align::right}});
  for (const ShardInfo& shard : shards)
    table.add({printable(shard.path, 1000), grouped(shard.file_bytes), grouped(shard.header_bytes),
               grouped(shard.tensors)});
  out.write("\n");
  table.print(out);
}

void print_metadata(Output& out, const std::vector<ShardInfo>& shards) {
  Table table({{"metadata"}, {"value"}});
  for (const ShardInfo& shard : shards) {
    for (const auto& [key, value] : shard.metadata) {
      std::string text = printable(value, longest_metadata);
      if (value.size() > longest_metadata)
        text += fmt::format(" ({} bytes)", grouped(value.size()));
      table.add({printable(key), std::move(text)});
    }
  }
  if (table.empty()) return;
  out.write("\n");
  table.print(out);
}

int print_text(Program& program, const Arguments& arguments, const Contents& contents) {
  Output& out = program.out;
  const std::vector<ShardInfo> shards = contents.checkpoint.shards();
  std::uint64_t bytes = 0, tensors = 0;
  for (const ShardInfo& shard : shards) {
    bytes += shard.file_bytes;
    tensors += shard.tensors;
  }
  out.print("{}: {} ({} bytes), {}, {}, {}\n",
            out.paint(Style::bold, printable(arguments.path, 1000)), bytes_text(bytes),
            grouped(bytes), counted(shards.size(), "file"), counted(tensors, "tensor"),
            counted(contents.checkpoint.size(), "layer"));
  if (!arguments.layers.empty())
    out.print("showing {} that match {}\n", counted(contents.layers.size(), "layer"),
              printable(arguments.layers));
  print_layers(out, contents);
  print_totals(out, contents);
  print_plain(out, contents);
  if (arguments.tensors) print_tensors(out, contents);
  print_files(out, shards);
  print_metadata(out, shards);
  const FindingCounts counts = count(contents.checkpoint.findings());
  if (counts.errors + counts.warnings + counts.notes)
    out.print("\n{}: {}; `parfait check` lists them and all others\n",
              out.paint(counts.errors ? Style::red : Style::yellow, "found while opening"),
              counts_text(counts));
  return exit_ok;
}

Json layer_json(const Contents& contents, const Layer& layer, Values values) {
  Json parts = Json::array();
  for (const Layer::Part& part : layer.parts()) {
    Json json = {{"role", part.role}};
    json.update(tensor_json(contents.checkpoint, part.tensor, values));
    parts.push_back(std::move(json));
  }
  return {{"name", layer.name()},
          {"format", layer.format()},
          {"kind", layer_kind_name(layer.kind())},
          {"rows", layer.rows()},
          {"columns", layer.columns()},
          {"rotate_group", layer.rotate_group()},
          {"scale_group", layer.scale_group()},
          {"stored_bytes", layer.stored_bytes()},
          {"bits_per_weight", layer.bits_per_weight()},
          {"declared_by", layer.source()},
          {"parts", std::move(parts)}};
}

int print_as_json(Program& program, const Arguments& arguments, const Contents& contents) {
  const Values values = arguments.tensors ? Values::read : Values::leave;
  Json files = Json::array(), layers = Json::array(), totals = Json::array();
  for (const ShardInfo& shard : contents.checkpoint.shards()) {
    Json metadata = Json::object();
    for (const auto& [key, value] : shard.metadata) metadata[key] = value;
    files.push_back({{"path", shard.path},
                     {"bytes", shard.file_bytes},
                     {"header_bytes", shard.header_bytes},
                     {"tensors", shard.tensors},
                     {"metadata", std::move(metadata)}});
  }
  for (const Layer& layer : contents.layers) layers.push_back(layer_json(contents, layer, values));
  for (const auto& [name, total] : contents.totals)
    totals.push_back({{"format", name},
                      {"layers", total.layers},
                      {"weights", static_cast<std::uint64_t>(total.weights)},
                      {"stored_bytes", total.stored_bytes},
                      {"bits_per_weight", total.bits()}});
  Json by_dtype = Json::object();
  for (const auto& [dtype, total] : contents.plain_by_dtype)
    by_dtype[std::string(dtype_name(dtype))] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
  Json json = {{"path", arguments.path},
               {"files", std::move(files)},
               {"layers", std::move(layers)},
               {"totals", std::move(totals)},
               {"plain",
                {{"tensors", contents.plain.size()},
                 {"bytes", contents.plain_bytes},
                 {"by_dtype", std::move(by_dtype)}}}};
  if (arguments.tensors) {
    Json tensors = Json::array();
    for (const TensorInfo& tensor : contents.plain)
      tensors.push_back(tensor_json(contents.checkpoint, tensor, values));
    json["plain_tensors"] = std::move(tensors);
  }
  const FindingCounts counts = count(contents.checkpoint.findings());
  json["findings"] = {
      {"errors", counts.errors}, {"warnings", counts.warnings}, {"notes", counts.notes}};
  print_json(program.out, json);
  return exit_ok;
}

int run(Program& program, const Arguments& arguments) {
  const Contents contents = gather(arguments);
  return program.json ? print_as_json(program, arguments, contents)
                      : print_text(program, arguments, contents);
}

}  // namespace

void add_inspect(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("inspect", "Say what a checkpoint is, layer by layer");
  verb.footer("Example: parfait inspect minimax_h3_mixed.safetensors --layers 'blocks.0.*'");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_option("--layers", arguments->layers, "Only layers whose names match (* and ?)")
      ->type_name("GLOB");
  verb.add_flag("--tensors", arguments->tensors,
                "List the tensors too; those of one element with their values");
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
