// A marker's bytes on a layer whose tensors fit several formats: the first byte picks them.

#include <cstring>

#include "container/writer.h"
#include "formats/format.h"

namespace {

using namespace parfait;

// A file with one layer and this marker, as a tensor and (where asked for) as a header table.
std::vector<std::byte> make_file(unsigned shape, std::string_view marker) {
  struct Tensor {
    const char* name;
    DType dtype;
    std::vector<std::uint64_t> shape;
  };
  std::vector<Tensor> tensors;
  switch (shape % 6) {
    case 0:
      tensors = {{"a.weight", DType::i8, {3, 128}}, {"a.weight_scale", DType::f32, {3}}};
      break;
    case 1:
      tensors = {{"a.weight", DType::u8, {3, 128}},
                 {"a.weight_scale", DType::f8_e4m3, {128, 16}},
                 {"a.weight_scale_2", DType::f32, {}}};
      break;
    case 2:
      tensors = {{"a.weight", DType::i8, {3, 128}},
                 {"a.weight_s_rel", DType::f8_e4m3, {3, 16}},
                 {"a.weight_s_channel", DType::f32, {3}}};
      break;
    case 3:
      tensors = {{"a.weight", DType::f8_e4m3, {3, 128}}, {"a.weight_scale", DType::u8, {128, 4}}};
      break;
    case 4:
      tensors = {{"a.weight", DType::i8, {2, 3, 4, 4}},
                 {"a.weight_scale", DType::f32, {2, 1, 1, 1}}};
      break;
    case 5:
      tensors = {{"a.weight", DType::i8, {3, 64}},
                 {"a.weight_scale", DType::bf16, {2, 3}},
                 {"a.weight_zeros", DType::bf16, {2, 3}}};
      break;
  }
  tensors.push_back({"a.comfy_quant", DType::u8, {marker.size()}});
  std::vector<container::TensorDeclaration> declarations;
  for (const Tensor& t : tensors) declarations.push_back({t.name, t.dtype, t.shape});
  std::vector<std::pair<std::string, std::string>> metadata;
  if (shape & 64)
    metadata.emplace_back("_quantization_metadata",
                          "{\"layers\": {\"a\": " + std::string(marker) + "}}");
  auto header = container::make_header(declarations, metadata);
  if (!header) return {};
  std::vector<std::byte> file = *header;
  std::size_t data = 0;
  for (const auto& d : declarations) {
    std::size_t count = dtype_bits(d.dtype) / 8;
    for (std::uint64_t n : d.shape) count *= n;
    data += count;
  }
  const std::size_t end = file.size() + data;
  file.resize(end, std::byte{1});
  if (!marker.empty()) std::memcpy(file.data() + end - marker.size(), marker.data(), marker.size());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view marker(reinterpret_cast<const char*>(data + 1), size - 1);
  std::vector<Finding> findings;
  formats::FindingSink sink(findings, "a");
  (void)formats::parse_marker(marker, sink, "a.comfy_quant");
  auto index = container::open_single(io::memory_reader("fuzz", make_file(data[0], marker)), {});
  if (!index) return 0;
  formats::DetectOptions options;
  options.compat = data[0] & 128 ? Compat::comfyui : Compat::none;
  auto checkpoint = formats::detect(*index, options);
  if (!checkpoint) return 0;
  (void)formats::check_layers(**checkpoint, {.depth = CheckDepth::data, .progress = {}});
  for (const formats::Layer& layer : (*checkpoint)->layers) {
    if (layer.rows == 0 || layer.columns == 0 || !formats::require_sound(**checkpoint, layer))
      continue;
    auto layer_data = formats::read_layer(**index, layer);
    if (!layer_data) continue;
    std::vector<float> rows(layer.rows * layer.columns);
    layer.format->decode(*layer_data, 0, layer.rows, rows.data());
    (void)layer.format->split(layer);
    (void)layer.format->size(layer, layer.rows, layer.columns);
  }
  return 0;
}
