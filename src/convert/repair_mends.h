// The mends: each looks at what a file says and edits its draft. None reads a weight; what the
// weights proved comes in as Proofs (repair_evidence.h).
#ifndef PARFAIT_CONVERT_REPAIR_MENDS_H_
#define PARFAIT_CONVERT_REPAIR_MENDS_H_

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "convert/repair_draft.h"
#include "formats/format.h"
#include "io/json.h"

namespace parfait::convert {

// What a layer's weight proves about its declaration.
struct Proof {
  std::string_view format;
  std::uint32_t rotate_group = 0;  // 0: it is not rotated
  std::string why;                 // the figures
  // Nothing about the rotation, but that the weight's bytes are of this type.
  std::optional<DType> stored_as = {};
};
using Proofs = std::unordered_map<std::string, Proof>;  // by layer

// What is wrong, cannot be proven, and would not be a finding of the mended file.
using Unproven = std::vector<Finding>;

// repair_marker.cc: one declaration.

// A declaration in ComfyUI's spelling: an object, its keys at the top. Adds why to the reasons
// where it differs.
io::Json normal_declaration(const io::Json& raw, std::vector<std::string>& reasons);
// The declaration with what the layer proves to be missing. Keys keep their order, new ones stand
// where ComfyUI's own saver has them.
io::Json complete_declaration(const io::Json& object, const formats::Layer& layer,
                              const Proof* proof, std::vector<std::string>& reasons);
// A declaration for a layer that has none; null where its rotation is not known.
io::Json new_declaration(const formats::Layer& layer, const Proof* proof);
io::Json new_declaration(const Proof& proof);

// repair_declarations.cc: markers, header tables, quant_format, scaled_fp8.
Result<Done> mend_declarations(Draft& draft, const formats::Checkpoint& checkpoint,
                               const RepairOptions& options, const Proofs& proofs,
                               Unproven& unproven);

// repair_parts.cc: names, dtypes and shapes of scales.
Result<Done> mend_parts(Draft& draft, const formats::Checkpoint& checkpoint, const Proofs& proofs);

// repair_evidence.cc: reads the weights whose rotation, or its group, is not declared.
Result<Done> weigh(const formats::Checkpoint& checkpoint, const ProgressCallback& progress,
                   Proofs& proofs, Unproven& unproven);
// repair_bytes.cc: reads the weights that are declared as fp8 and stored as U8.
Result<Done> weigh_bytes(const formats::Checkpoint& checkpoint, const ProgressCallback& progress,
                         Proofs& proofs);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_REPAIR_MENDS_H_
