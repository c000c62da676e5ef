// Tensors and layers of a checkpoint, by name.

#include <algorithm>

#include "base/result.h"
#include "base/text.h"
#include "formats/format.h"
#include "parfait/checkpoint.h"

namespace parfait {

Result<std::vector<std::byte>> read_tensor(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const container::TensorIndex& index = *checkpoint.state()->index;
  if (tensor.shard >= index.shards().size())
    return make_error(ErrorCode::file_read, "tensor {}: belongs to another checkpoint",
                      printable(tensor.name));
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes, index.read(tensor, scratch));
  if (bytes.data() == scratch.data()) return scratch;
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

Result<std::vector<Layer>> match_layers(const Checkpoint& checkpoint, std::string_view pattern) {
  std::vector<Layer> matches;
  for (Layer layer : checkpoint)
    if (glob_match(pattern, layer.name())) matches.push_back(layer);
  if (!matches.empty()) return matches;
  std::vector<std::string_view> names;
  for (Layer layer : checkpoint) names.push_back(layer.name());
  if (names.empty())
    return make_error(ErrorCode::layer_not_found,
                      "no layer matches {}: the checkpoint has no layers", printable(pattern));
  const std::string nearest = nearest_name(pattern, names);
  return make_error(ErrorCode::layer_not_found, "none of the {} layers matches {}; {} {}",
                    names.size(), printable(pattern),
                    nearest.empty() ? "the first is" : "the nearest is",
                    printable(nearest.empty() ? names.front() : std::string_view(nearest)));
}

}  // namespace parfait
