// One layer from a source into an output: read, encoded, written, read back and measured, a panel
// of rows at a time on all threads. No more than some panels and the layer's small tensors are ever
// in memory. The bytes do not depend on the threads, the panels or the machine.
#ifndef PARFAIT_CONVERT_ENCODE_LAYER_H_
#define PARFAIT_CONVERT_ENCODE_LAYER_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "convert/output.h"
#include "convert/target.h"
#include "formats/format.h"
#include "parfait/plan.h"
#include "runtime/threads.h"

namespace parfait::convert {

// How rows become bytes where that is not the format's own encoder: whatever finds better codes or
// scales of the same format. Both functions follow the contract of formats::Encoder's.
struct RowEncoder {
  std::function<Result<formats::Survey>(const formats::RowReader&)> survey;  // may be empty
  std::function<void(const formats::Survey&, std::uint64_t first, std::uint64_t count, float* w,
                     const formats::EncodeBuffers&)>
      encode;
};

struct EncodeWork {
  const formats::Checkpoint& source;
  const formats::Layer& layer;  // of the source, and sound
  const LayerTarget& target;
  // Where target.tensors() are in the output, in their order.
  std::span<const std::size_t> outputs;
  const RowEncoder* encoder = nullptr;  // null: the format's own
};

struct EncodeMeans {
  Output& out;
  runtime::Threads& threads;
  std::uint64_t max_memory = std::uint64_t{2} << 30;
  std::optional<Isa> isa;  // unset: the machine's best
  // Called now and then from the calling thread with the share of the layer that is done, 0 to 1;
  // false cancels.
  std::function<bool(double)> progress;
};

// What the written layer, read back and decoded, differs from the source by.
struct LayerError {
  double relative_l2 = 0;  // √(Σ (written - source)² / Σ source²); 0 where both are 0
  double energy = 0;       // Σ source²
  float max_error = 0;     // largest |written - source|, in the original basis
  double sqnr_db() const;  // -20 · log10(relative_l2); infinite where nothing differs
};

Result<LayerError> encode_layer(const EncodeWork& work, const EncodeMeans& means);

// A tensor of the source as it is, byte for byte, to tensor `output`.
Result<Done> copy_tensor(const formats::Checkpoint& source, const TensorInfo& tensor,
                         std::size_t output, const EncodeMeans& means);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_ENCODE_LAYER_H_
