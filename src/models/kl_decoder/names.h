// Image auto-encoders: MODEL.md's table of names, as data, for encoder and decoder.
#ifndef PARFAIT_MODELS_KL_DECODER_NAMES_H_
#define PARFAIT_MODELS_KL_DECODER_NAMES_H_

#include <optional>

#include "models/names.h"

namespace parfait::models {

// Nothing where a checkpoint is no such auto-encoder.
std::optional<NamesFound> find_kl_names(const formats::Checkpoint& checkpoint);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_KL_DECODER_NAMES_H_
