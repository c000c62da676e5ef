// "convrot_w4a4 group=64": what layers are to become, read from text; and the settings that it
// means for one layer.
#ifndef PARFAIT_CONVERT_CONVERT_TARGET_H_
#define PARFAIT_CONVERT_CONVERT_TARGET_H_

#include <optional>
#include <string>
#include <string_view>

#include "convert/gguf.h"
#include "formats/format.h"

namespace parfait::convert {

struct ConvertTarget {
  std::string_view name;                    // "convrot_w4a4", "q8_0"
  const formats::Format* format = nullptr;  // null for GGUF's block types
  const gguf::BlockType* block = nullptr;   // null for formats
  // What the text sets; empty: chosen for each layer.
  std::optional<std::uint32_t> rotate_group, scale_group;
  std::optional<formats::ScaleOf> scale_of;
  std::optional<Activation> activation;

  const formats::Encoder& encoder() const { return block ? block->encoder : *format->encoder; }
  bool plain() const { return format && format->folder == "plain"; }
};

enum class TargetKind { safetensors, gguf };
// The words that may stand first.
std::string target_names(TargetKind kind);
Result<ConvertTarget> parse_target(std::string_view text, TargetKind kind);

// The largest ConvRot group of 256, 64 and 16 that fits the layer, where the format rotates and the
// text names none.
formats::EncodeSettings settings_for(const ConvertTarget& target,
                                     const formats::WeightShape& shape);
// Whether a layer is of this format and of the settings that the text names, but for the
// activation, of which only the marker speaks.
bool is_already(const ConvertTarget& target, const formats::Layer& layer);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_CONVERT_TARGET_H_
