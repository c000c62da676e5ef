#include "convert/presets.h"

#include <algorithm>

#include "base/text.h"

namespace parfait {
namespace convert {
namespace {

// A preset, and patterns of layers each of which its models have. The first that fits counts.
struct Entry {
  RecipePreset preset;
  std::vector<std::string_view> signs;
};

// What stays: small layers at either end, through which everything passes, and modulation, whose
// error reaches every token. As in the published files of each family.
const std::vector<Entry>& table() {
  static const std::vector<Entry> entries = {
      {{"minimax_h3", "MiniMax-H3 transformer, whole or pruned",
        R"(# MiniMax-H3: the four products of each block. The modulation of whole files is K = 2688 = 64 * 42
# wide, which gives it group 64; that of pruned files (K = 8) is too narrow and stays.
*token_refiner.*                 keep
*final_layer.*                   keep
*blocks.*.attn.qkv_proj          default
*blocks.*.attn.out_proj          default
*blocks.*.mlp.fc1                default
*blocks.*.mlp.fc2                default
*blocks.*.attn.to_q              default
*blocks.*.attn.to_k              default
*blocks.*.attn.to_v              default
*blocks.*.attn.to_out.0          default
*blocks.*.ff.net.0.proj          default
*blocks.*.ff.net.2               default
*blocks.*.adaln_proj.linear      default  min=10000000
*                                keep
)"},
       {"*blocks.*.adaln_proj.linear", "*token_refiner.*"}},
      {{"flux2", "FLUX.2 transformers, klein among them",
        R"(# FLUX.2: the linears of all blocks. Embedders, modulation, guidance and the last layer stay.
*double_blocks.*                 default
*single_blocks.*                 default
*transformer_blocks.*            default
*                                keep
)"},
       {"*double_stream_modulation_img.lin*"}},
      {{"z_image", "Z-Image transformers",
        R"(# Z-Image: attention and feed-forward of the layers. Refiners, embedders, adaLN and the last layer
# stay.
*adaLN*                          keep
*noise_refiner.*                 keep
*context_refiner.*               keep
*layers.*.attention.*            default
*layers.*.feed_forward.*         default
*                                keep
)"},
       {"*layers.*.feed_forward.w1", "*layers.*.adaLN_modulation.*"}},
      {{"qwen3", "Qwen3 and Qwen3-VL text encoders",
        R"(# Qwen3: attention and MLP of the layers. Embeddings, the head and vision stay.
*visual.*                        keep
*lm_head                         keep
*embed_tokens                    keep
*layers.*.self_attn.*            default
*layers.*.mlp.*                  default
*                                keep
)"},
       {"*layers.*.self_attn.q_proj", "*layers.*.mlp.gate_proj"}},
      {{"generic", "any model: linear layers, but for names that speak of either end",
        R"(# Any model. First what every token or every step passes through, by the usual names.
*embed*                          keep
*adaln*                          keep
*adaLN*                          keep
*modulation*                     keep
*img_mod.*                       keep
*txt_mod.*                       keep
*time_in.*                       keep
*img_in                          keep
*txt_in                          keep
*proj_in                         keep
*proj_out                        keep
*norm_out*                       keep
*final_layer*                    keep
*lm_head                         keep
*visual.*                        keep
*vision*                         keep
*pooler*                         keep
*                                default
)"},
       {}},
  };
  return entries;
}

}  // namespace

const RecipePreset* find_preset(std::string_view name) {
  const auto found = std::ranges::find(table(), name, [](const Entry& e) { return e.preset.name; });
  return found == table().end() ? nullptr : &found->preset;
}

const RecipePreset& preset_for(const formats::Checkpoint& checkpoint) {
  for (const Entry& entry : table()) {
    const bool fits = std::ranges::all_of(entry.signs, [&](std::string_view sign) {
      for (const formats::Layer& layer : checkpoint.layers)
        if (glob_match(sign, layer.name)) return true;
      return false;
    });
    if (fits) return entry.preset;
  }
  return table().back().preset;
}

}  // namespace convert

std::vector<RecipePreset> recipe_presets() {
  std::vector<RecipePreset> presets;
  for (const convert::Entry& entry : convert::table()) presets.push_back(entry.preset);
  return presets;
}

}  // namespace parfait
