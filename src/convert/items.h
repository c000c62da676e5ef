// What a conversion writes, before it is decided how: layers, each with the rows of the source's
// layers that it is made of, and tensors that belong to no layer, under their new names.
#ifndef PARFAIT_CONVERT_ITEMS_H_
#define PARFAIT_CONVERT_ITEMS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "formats/format.h"
#include "models/names.h"

namespace parfait::convert {

// Rows [first, first + rows) of a layer.
struct Segment {
  const formats::Layer* layer = nullptr;
  std::uint64_t first = 0, rows = 0;
  bool whole() const { return first == 0 && rows == layer->rows; }
};

struct Item {
  std::string name;                       // of the layer, or of the tensor
  std::vector<Segment> segments;          // of a layer; empty for a tensor
  const TensorInfo* tensor = nullptr;     // of a tensor
  std::vector<std::uint64_t> shape = {};  // of a tensor: another than it has; empty: its own
  std::vector<float> made = {};           // of a tensor that the source has not: [n] F32
};

struct Items {
  std::vector<Item> items;         // in the order of the source's weights
  std::vector<std::string> notes;  // what could not be renamed, and why
};

// All layers and tensors as they are named. The tensor that marks a legacy scaled_fp8 file is left
// out: what it says is written into each layer.
Items items_of(const formats::Checkpoint& source);

struct Renaming {
  models::NameStyle style = models::NameStyle::comfy;
  // by_head: q, k and v of the source's fused layers lie head by head, as in MiniMaxAI's own files.
  enum class Qkv { in_thirds, by_head } qkv = Qkv::in_thirds;
  // refused: values that the other style has no place for must be those that its readers compute.
  enum class Loss { allowed, refused } loss = Loss::allowed;
};
// The same in another style of names. Fails where no architecture with two styles is recognised,
// or a part of a fused layer is missing.
Result<Items> renamed_items(const formats::Checkpoint& source, const Renaming& renaming);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_ITEMS_H_
