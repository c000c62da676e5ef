// An architecture's names in Comfy's files and in diffusers', so that one can be made of the other.
#ifndef PARFAIT_MODELS_NAMES_H_
#define PARFAIT_MODELS_NAMES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace parfait::models {

enum class NameStyle { comfy, diffusers };
std::string_view name_style_name(NameStyle style);  // "Comfy's", "diffusers'"

// A layer or a tensor under both names, without the file's prefix. '#' is a block's number.
struct NamePair {
  std::string_view comfy;
  // Several: layers whose rows, one after the other, are those of Comfy's.
  std::vector<std::string_view> diffusers;
  enum class Rows { same, halves_swapped } rows = Rows::same;
  std::string_view comfy_too = {};  // another spelling in Comfy's files, which is read only
};

struct NameTable {
  std::string_view model;         // "FLUX.2"
  std::string_view architecture;  // as GGUF files call it
  // Layers ("img_in") and whole tensors ("x_pad_token").
  std::vector<NamePair> layers, tensors;
};

// The table of the architecture whose tensors these are, the prefix before every name, and the
// style of the file; nothing where no architecture with two sets of names is recognised.
struct NamesFound {
  const NameTable* table = nullptr;
  std::string prefix;
  NameStyle style = NameStyle::comfy;
};
std::optional<NamesFound> find_names(const formats::Checkpoint& checkpoint);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_NAMES_H_
