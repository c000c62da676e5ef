// MiniMax-H3: MODEL.md's table of names, as data.
#ifndef PARFAIT_MODELS_MINIMAX_H3_NAMES_H_
#define PARFAIT_MODELS_MINIMAX_H3_NAMES_H_

#include <optional>
#include <string>

#include "models/names.h"

namespace parfait::models::minimax_h3 {

const NameTable& names();

// The prefix before the names of a checkpoint that is one, whole or pruned.
std::optional<std::string> recognise(const formats::Checkpoint& checkpoint);

}  // namespace parfait::models::minimax_h3

#endif  // PARFAIT_MODELS_MINIMAX_H3_NAMES_H_
