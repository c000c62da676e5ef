// Qwen3's names in transformers' files and in llama.cpp's, as data.
#ifndef PARFAIT_MODELS_QWEN3_NAMES_H_
#define PARFAIT_MODELS_QWEN3_NAMES_H_

#include <optional>
#include <string>

#include "models/names.h"

namespace parfait::models::qwen3 {

const NameTable& llama_names();

// The prefix before the names of a checkpoint that is a Qwen3 decoder and nothing besides: not of
// a model that sees, nor of Qwen2, which has no norms of queries.
std::optional<std::string> recognise_names(const formats::Checkpoint& checkpoint);

}  // namespace parfait::models::qwen3

#endif  // PARFAIT_MODELS_QWEN3_NAMES_H_
