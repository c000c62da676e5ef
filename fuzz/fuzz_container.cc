// A whole file: header, detection, header check. Nothing may crash, hang or allocate beyond the
// input.

#include <cstring>

#include "container/tensor_index.h"
#include "formats/format.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace parfait;
  std::vector<std::byte> bytes(size);
  if (size) std::memcpy(bytes.data(), data, size);
  OpenOptions options;
  options.strictness = Strictness::lenient;
  auto index = container::open_single(io::memory_reader("fuzz", std::move(bytes)), options);
  if (!index) return 0;
  auto checkpoint = formats::detect(*index);
  if (!checkpoint) return 0;
  auto findings = formats::check_layers(**checkpoint, {.depth = CheckDepth::data, .progress = {}});
  if (!findings) return 0;
  // A layer that the check finds nothing against can be decoded.
  for (const formats::Layer& layer : (*checkpoint)->layers) {
    if (layer.rows == 0 || layer.columns == 0 || layer.columns > 65536) continue;
    if (!formats::require_sound(**checkpoint, layer)) continue;
    auto layer_data = formats::read_layer(**index, layer);
    if (!layer_data) continue;
    std::vector<float> row(layer.columns);
    layer.format->decode(*layer_data, layer.rows - 1, 1, row.data());
  }
  return 0;
}
