// An architecture's names in two styles of files, so that one can be made of the other.
#ifndef PARFAIT_MODELS_NAMES_H_
#define PARFAIT_MODELS_NAMES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace parfait::models {

enum class NameStyle { comfy, diffusers, transformers, llama_cpp };
std::string_view name_style_name(NameStyle style);  // "Comfy's", "diffusers'", ...

// A layer or a tensor under both names, without the file's prefix. '#' is a block's number.
struct NamePair {
  std::string_view first;
  // Several: layers whose rows, one after the other, are those of the first style's.
  std::vector<std::string_view> second;
  // pointwise: a 1 × 1 convolution [out, in, 1, 1] in the first style, a matrix in the second.
  enum class Rows { same, halves_swapped, pointwise } rows = Rows::same;
  std::string_view first_too = {};  // another spelling in files of the first style, read only
  // Of a layer that some publishers store with the rows of each head together (q, k and v of head
  // 0, then of head 1): a tensor of the first style with one value for each row of a head.
  std::string_view head = {};
};

// F32 values that files of the first style hold and readers of the second compute.
struct MadeTensor {
  std::string_view name;
  std::string_view first_head, second_head;  // a tensor with one value for each column of a head
  std::vector<float> (*values)(std::uint64_t head) = nullptr;
};

struct NameTable {
  std::string_view model;         // "FLUX.2"
  std::string_view architecture;  // as GGUF files call it; empty where they have no word for it
  NameStyle first = NameStyle::comfy, second = NameStyle::diffusers;
  // Layers ("img_in") and whole tensors ("x_pad_token").
  std::vector<NamePair> layers, tensors;
  // Layers whose names have no prefix where the others have one.
  std::vector<NamePair> beside = {};
  std::optional<MadeTensor> made = {};
  // Tensors of the second style that no reader of the first looks at.
  std::vector<std::string_view> unread = {};
  // A tensor of the first style whose models have no form in the second, and what they are.
  std::string_view first_only = {}, first_only_model = {};
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
