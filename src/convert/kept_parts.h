// The tensors of a layer that keeps its format, moved by rows: bytes that are copied, never
// decoded. Rows of several layers become one layer where they are of one format, settings and
// tensor-wide scale.
#ifndef PARFAIT_CONVERT_KEPT_PARTS_H_
#define PARFAIT_CONVERT_KEPT_PARTS_H_

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "container/writer.h"
#include "convert/items.h"

namespace parfait::convert {

// Bytes of a source's tensor.
struct ByteRun {
  const TensorInfo* tensor = nullptr;
  std::uint64_t offset = 0, bytes = 0;  // within it
};

// A tensor to be written: its bytes are those of the runs, or those that make() gives, where
// columns and not rows follow each other (small tensors only).
struct KeptTensor {
  container::TensorDeclaration declaration;
  std::vector<ByteRun> runs;
  std::function<Result<std::vector<std::byte>>()> make;
};

// Why these rows cannot be one layer of their format, as the end of a sentence; empty if they can.
// Reads scalars and codebooks where there are several segments.
Result<std::string> fusing_refusal(const formats::Checkpoint& source,
                                   std::span<const Segment> segments);

// For segments of one layer, or that fusing_refusal() accepts. The weight comes first and the
// marker, if the format has one, last. activation: what the marker is to say of it from now on.
Result<std::vector<KeptTensor>> kept_parts(const formats::Checkpoint& source, const Item& item,
                                           std::optional<Activation> activation = {});
// The bias alone; nothing where there is none. Fails where only some of the rows have one, or in
// different types.
Result<std::vector<KeptTensor>> kept_bias(const formats::Checkpoint& source, const Item& item);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_KEPT_PARTS_H_
