#include "formats/owners.h"

#include <unordered_set>

namespace parfait::formats {
namespace {

// Suffixes of other tools' layouts, by which they are recognised and named.
struct ForeignSuffix {
  std::string_view suffix, tool, advice;
};
constexpr ForeignSuffix foreign_suffixes[] = {
    {"weight.absmax", "bitsandbytes",
     "load it with bitsandbytes and save the layers as bf16 first"},
    {"weight.quant_map", "bitsandbytes",
     "load it with bitsandbytes and save the layers as bf16 first"},
    {"weight.quant_state.bitsandbytes__nf4", "bitsandbytes",
     "load it with bitsandbytes and save the layers as bf16 first"},
    {"weight.quant_state.bitsandbytes__fp4", "bitsandbytes",
     "load it with bitsandbytes and save the layers as bf16 first"},
    {"qweight", "GPTQ or AutoAWQ", "convert it with that tool first"},
    {"qzeros", "GPTQ or AutoAWQ", "convert it with that tool first"},
    {"g_idx", "GPTQ", "convert it with that tool first"},
    {"wscales", "nunchaku (SVDQuant)", "it runs in nunchaku only"},
    {"wzeros", "nunchaku (SVDQuant)", "it runs in nunchaku only"},
    {"input_global_scale", "LightX2V or compressed-tensors (NVFP4)",
     "its nibble order and global scale differ from Comfy's; convert it first"},
    {"weight_global_scale", "compressed-tensors (NVFP4)",
     "its nibble order and global scale differ from Comfy's; convert it first"},
    {"weight_packed", "compressed-tensors", "convert it with that tool first"},
    {"weight.prism_scale", "Prism", "ComfyUI reads it with the Prism model only"},
    {"weight:qdata", "torchao", "convert it with torchao first"},
    {"weight:scale", "torchao", "convert it with torchao first"},
};

const std::unordered_set<std::string_view>& known_suffixes() {
  static const auto suffixes = [] {
    std::unordered_set<std::string_view> all = {"comfy_quant", "weight", "bias"};
    for (const Format* format : all_formats())
      for (const PartSpec& part : format->parts)
        all.insert(part.suffixes.begin(), part.suffixes.end());
    for (const ForeignSuffix& foreign : foreign_suffixes) all.insert(foreign.suffix);
    return all;
  }();
  return suffixes;
}

// Splits a tensor's name into owner and known suffix; an empty suffix where none fits. A suffix may
// itself have a dot ("weight.absmax"), so the last two dots are tried.
std::pair<std::string_view, std::string_view> split_name(std::string_view name) {
  std::size_t dot = name.rfind('.');
  for (int tries = 0; tries < 3 && dot != std::string_view::npos; ++tries) {
    const std::string_view suffix = name.substr(dot + 1);
    if (is_known_suffix(suffix)) return {name.substr(0, dot), suffix};
    if (dot == 0) break;
    dot = name.rfind('.', dot - 1);
  }
  if (is_known_suffix(name)) return {{}, name};  // a module saved by itself: its layer has no name
  return {name, {}};
}

}  // namespace

bool is_known_suffix(std::string_view suffix) { return known_suffixes().contains(suffix); }

ForeignTool foreign_tool(const Owner& owner) {
  for (const Part& part : owner.tensors)
    for (const ForeignSuffix& foreign : foreign_suffixes)
      if (part.role == foreign.suffix) return {foreign.tool, foreign.advice};
  return {};
}

Owners::Owners(const container::TensorIndex& index) {
  for (const TensorInfo& tensor : index.tensors()) {
    const auto [name, suffix] = split_name(tensor.name);
    if (suffix.empty()) {
      unowned_.push_back(&tensor);
      continue;
    }
    const auto [it, added] = by_name_.try_emplace(name, static_cast<std::uint32_t>(owners_.size()));
    if (added) owners_.push_back(Owner{name, {}, nullptr});
    Owner& owner = owners_[it->second];
    owner.tensors.push_back({suffix, &tensor});
    if (suffix == "weight") owner.weight = &tensor;
  }
}

std::int64_t Owners::find_with_weight(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it != by_name_.end() && owners_[it->second].weight ? std::int64_t{it->second} : -1;
}

std::string_view Owners::without_wrappers(std::string_view name) {
  constexpr std::string_view wrappers[] = {"_checkpoint_wrapped_module", "_orig_mod"};
  bool wrapped = false;
  for (std::string_view wrapper : wrappers) wrapped |= name.find(wrapper) != std::string_view::npos;
  if (!wrapped) return name;
  std::string kept;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view component = name.substr(begin, end - begin);
    if (component != wrappers[0] && component != wrappers[1]) {
      if (!kept.empty()) kept += '.';
      kept += component;
    }
    begin = end + 1;
  }
  unwrapped_.push_back(std::make_unique<std::string>(std::move(kept)));
  return *unwrapped_.back();
}

void Owners::index_suffixes() {
  suffixes_indexed_ = true;
  for (std::uint32_t i = 0; i < owners_.size(); ++i) {
    if (!owners_[i].weight) continue;
    std::string_view suffix = without_wrappers(owners_[i].name);
    for (int dropped = 0; dropped <= max_prefix; ++dropped) {
      const auto [it, added] = by_suffix_.try_emplace(suffix, Match{Match::Kind::one, i, i});
      if (!added && it->second.owner != i) {
        it->second.kind = Match::Kind::several;
        it->second.other = i;
      }
      const std::size_t dot = suffix.find('.');
      if (dot == std::string_view::npos) break;
      suffix = suffix.substr(dot + 1);
    }
  }
}

Owners::Match Owners::match(std::string_view name) {
  if (!suffixes_indexed_) index_suffixes();
  std::string_view rest = without_wrappers(name);
  // The whole name first: an owner with a longer prefix. Then with leading components dropped,
  // where only an owner of exactly that name counts ("a.b.c" must not mean "x.c").
  if (const auto it = by_suffix_.find(rest); it != by_suffix_.end()) return it->second;
  for (int dropped = 0; dropped < max_prefix; ++dropped) {
    const std::size_t dot = rest.find('.');
    if (dot == std::string_view::npos) break;
    rest = rest.substr(dot + 1);
    const auto it = by_suffix_.find(rest);
    if (it == by_suffix_.end()) continue;
    if (it->second.kind == Match::Kind::several) return it->second;
    if (without_wrappers(owners_[it->second.owner].name) == rest) return it->second;
  }
  return {};
}

}  // namespace parfait::formats
