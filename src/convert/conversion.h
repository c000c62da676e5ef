// A conversion, decided before any weight is read: each tensor of the output, in order, and how its
// bytes come about.
#ifndef PARFAIT_CONVERT_CONVERSION_H_
#define PARFAIT_CONVERT_CONVERSION_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "container/writer.h"
#include "convert/convert_target.h"
#include "convert/items.h"
#include "convert/kept_parts.h"
#include "convert/target.h"
#include "parfait/convert.h"

namespace parfait::convert {

struct PlannedTensor {
  container::TensorDeclaration declaration;  // GGUF's blocks are U8 of as many bytes
  std::uint64_t bytes = 0;
  // GGUF only.
  gguf::Type type = gguf::Type::f32;
  std::vector<std::uint64_t> logical_shape;
};

// A tensor whose values are taken over: the bytes, or float values in another type.
struct Copy {
  std::size_t tensor = 0;
  KeptTensor from;
  DType from_dtype = DType::f32;  // the declaration's, or another float type
};

// A layer's rows through an encoder, into tensors from `tensor` on.
struct Encoding {
  std::size_t tensor = 0;
  std::size_t item = 0;
  formats::WeightShape shape;
  formats::EncodeSettings settings;
  std::optional<LayerTarget> target;       // of a format
  const gguf::BlockType* block = nullptr;  // of GGUF's
  const formats::Encoder& encoder() const { return block ? block->encoder : target->encoder(); }
  std::string_view name() const { return block ? block->name : target->format().name; }
};

// What is written, and recorded as done, at once: a layer with its companions, or a tensor.
struct Unit {
  std::string name;
  std::size_t first = 0, count = 0;  // its tensors
  std::vector<Copy> copies;
  std::optional<Encoding> encoding;
  std::uint64_t bytes = 0;  // written
};

struct Conversion {
  TargetKind container = TargetKind::safetensors;
  Items items;
  std::vector<PlannedTensor> tensors;
  std::vector<Unit> units;
  std::vector<std::pair<std::string, std::string>> metadata;  // safetensors
  gguf::Keys keys;                                            // GGUF
  std::vector<ConvertedLayer> layers;                         // the report's
  std::vector<std::string> notes;
};

Result<Conversion> plan_conversion(const Checkpoint& source, TargetKind container,
                                   const ConvertOptions& options);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_CONVERSION_H_
