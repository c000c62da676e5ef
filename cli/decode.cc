// parfait decode FILE LAYER -o OUT: a layer's weight as floats, in the original basis.

#include <algorithm>
#include <cmath>

#include "cli/table.h"
#include "cli/verbs.h"

namespace parfait::cli {
namespace {

constexpr std::uint64_t tile_values = 4 << 20;  // decoded at a time: 16 MiB of floats

struct Arguments {
  std::string path, layer, out;
  OpenOptions open;
  DType dtype = DType::f32;
};

// The weight's own shape where it is not packed (a convolution's, say), else rows × columns.
std::vector<std::uint64_t> output_shape(const Layer& layer) {
  for (const Layer::Part& part : layer.parts()) {
    if (part.role != "weight") continue;
    std::uint64_t values = 1;
    for (std::uint64_t d : part.tensor.shape) values *= d;
    if (values == layer.rows() * layer.columns())
      return {part.tensor.shape.begin(), part.tensor.shape.end()};
  }
  return {layer.rows(), layer.columns()};
}

// By name; a pattern that fits one layer will do.
Layer find_layer(const Checkpoint& checkpoint, const std::string& name) {
  if (const auto layer = checkpoint.find(name)) return *layer;
  const std::vector<Layer> matches = get(match_layers(checkpoint, name));
  if (matches.size() > 1)
    fail(ErrorCode::layer_not_found,
         fmt::format("{} matches {} layers, {} and others; one is decoded at a time",
                     printable(name), matches.size(), printable(matches[0].name())));
  return matches[0];
}

int run(Program& program, const Arguments& arguments) {
  const Checkpoint checkpoint = get(open(arguments.path, arguments.open));
  const Layer layer = find_layer(checkpoint, arguments.layer);
  const std::uint64_t rows = layer.rows(), columns = layer.columns();
  const std::uint64_t tile = std::clamp<std::uint64_t>(
      tile_values / std::max<std::uint64_t>(columns, 1), 1, std::max<std::uint64_t>(rows, 1));
  std::vector<float> values(tile * columns);
  // Before the output is touched: a layer that cannot be decoded leaves nothing behind.
  get(decode(checkpoint, layer, 0, 0, values));

  const std::string name = fmt::format("{}.weight", layer.name());
  Writer writer = get(Writer::create(arguments.out, {{name, arguments.dtype, output_shape(layer)}},
                                     {{"decoded_from", std::string(layer.format())}},
                                     std::span(&checkpoint, 1)));
  std::vector<std::byte> bytes(values.size() * dtype_bits(arguments.dtype) / 8);
  std::uint64_t overflowed = 0;
  ProgressBar bar("decoding");
  for (std::uint64_t row = 0; row < rows; row += tile) {
    if (!bar.show({row, rows, layer.name()})) throw Interrupted{};
    const std::uint64_t count = std::min(tile, rows - row) * columns;
    get(decode(checkpoint, layer, row, count / columns, std::span(values).first(count)));
    for (std::uint64_t i = 0; i < count; ++i) {
      store_float(arguments.dtype, bytes.data(), i, values[i]);
      overflowed +=
          std::isfinite(values[i]) && !std::isfinite(load_float(arguments.dtype, bytes.data(), i));
    }
    get(writer.append(std::span(bytes).first(count * dtype_bits(arguments.dtype) / 8)));
  }
  if (signal_caught()) throw Interrupted{};
  get(writer.finish());
  if (overflowed)
    complain(fmt::format("{} of {} are beyond the range of {} and became infinite",
                         counted(overflowed, "value"), grouped(rows * columns),
                         dtype_name(arguments.dtype)));
  if (program.json)
    print_json(program.out, {{"layer", layer.name()},
                             {"format", layer.format()},
                             {"tensor", name},
                             {"dtype", dtype_name(arguments.dtype)},
                             {"shape", to_json(output_shape(layer))},
                             {"overflowed", overflowed},
                             {"out", arguments.out}});
  else
    program.out.print("{}: {} {} {}, decoded from {}\n", printable(arguments.out, 1000),
                      printable(name, 1000), dtype_name(arguments.dtype),
                      shape_text(output_shape(layer)), layer.format());
  return exit_ok;
}

}  // namespace

void add_decode(CLI::App& app, Program& program) {
  CLI::App& verb = *app.add_subcommand("decode", "Write one layer's weight as floats");
  verb.footer(
      "The weight is written in the original basis: a rotated one is rotated back.\n"
      "Example: parfait decode mixed.safetensors blocks.0.attn.qkv_proj -o qkv.safetensors");
  auto arguments = std::make_shared<Arguments>();
  verb.add_option("FILE", arguments->path, "A safetensors file, a shard index, or a folder")
      ->required();
  verb.add_option("LAYER", arguments->layer, "The layer's name")->required();
  verb.add_option("-o,--output", arguments->out, "The safetensors file to write")
      ->required()
      ->type_name("OUT");
  add_choice<DType>(verb, "--dtype", arguments->dtype,
                    {{"f32", DType::f32}, {"f16", DType::f16}, {"bf16", DType::bf16}},
                    "The type to write (default f32)");
  add_open_options(verb, arguments->open);
  add_json_option(verb, program);
  verb.callback([&program, arguments] {
    program.run = [&program, arguments] { return run(program, *arguments); };
  });
}

}  // namespace parfait::cli
