// What `inspect` says of single tensors: scalars are shown as values, since a scale that looks
// empty leaves one to guess whether the file is scaled.
#ifndef PARFAIT_CLI_TENSORS_H_
#define PARFAIT_CLI_TENSORS_H_

#include <optional>
#include <string>

#include "cli/common.h"

namespace parfait::cli {

// The value of a tensor of one element, as text: "1.0", "-3"; nothing for other tensors.
std::optional<std::string> scalar_text(const Checkpoint& checkpoint, const TensorInfo& tensor);

enum class Values { leave, read };
// With Values::read, a tensor of one element has its value too.
Json tensor_json(const Checkpoint& checkpoint, const TensorInfo& tensor, Values values);

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_TENSORS_H_
