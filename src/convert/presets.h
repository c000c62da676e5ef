// The recipes that come with the program, one for each family of models.
#ifndef PARFAIT_CONVERT_PRESETS_H_
#define PARFAIT_CONVERT_PRESETS_H_

#include <span>
#include <string_view>
#include <vector>

#include "formats/format.h"
#include "parfait/quantize.h"

namespace parfait::convert {

// Null where there is none of that name.
const RecipePreset* find_preset(std::string_view name);
// By the names of its layers; the last, generic, fits everything.
const RecipePreset& preset_for(const formats::Checkpoint& checkpoint);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_PRESETS_H_
