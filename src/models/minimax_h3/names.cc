#include "models/minimax_h3/names.h"

#include <cmath>
#include <deque>

namespace parfait::models::minimax_h3 {
namespace {

// 1 / 10000^(i / n), n = head / 8, rounded as torch rounds it: the power to F32, then its inverse.
std::vector<float> inverse_frequencies(std::uint64_t head) {
  const std::uint64_t n = head / 8;
  std::vector<float> values(n);
  for (std::uint64_t i = 0; i < n; ++i)
    values[i] = 1.0f / static_cast<float>(
                           std::pow(10000.0, static_cast<double>(i) / static_cast<double>(n)));
  return values;
}

struct Tables {
  NameTable table{
      .model = "MiniMax-H3",
      .architecture = "minimax_h3",
      .layers = {},
      .tensors = {},
      .made = MadeTensor{"rope.inv_freq", "blocks.#.attn.k_norm.weight",
                         "transformer_blocks.#.attn.norm_k.weight", &inverse_frequencies},
      .unread = {"adaln_basis", "adaln_mean"},
      .first_only = "adaln_t_table",
      .first_only_model =
          "a pruned model (its modulation folded into a table of the "
          "time)"};
  std::deque<std::string> texts;

  std::string_view text(std::string text) { return texts.emplace_back(std::move(text)); }

  void add_block(const std::string& first, const std::string& second) {
    const auto one = [&](const char* a, const char* b) {
      table.layers.push_back({text(first + a), {text(second + b)}});
    };
    const auto vector = [&](const char* a, const char* b) {
      table.tensors.push_back({text(first + a), {text(second + b)}});
    };
    table.layers.push_back({.first = text(first + "attn.qkv_proj"),
                            .second = {text(second + "attn.to_q"), text(second + "attn.to_k"),
                                       text(second + "attn.to_v")},
                            .head = text(first + "attn.q_norm.weight")});
    one("attn.out_proj", "attn.to_out.0");
    // Gate, up in Comfy's; up, gate in diffusers'.
    table.layers.push_back({text(first + "mlp.fc1"),
                            {text(second + "ff.net.0.proj")},
                            NamePair::Rows::halves_swapped});
    one("mlp.fc2", "ff.net.2");
    vector("attn.q_norm.weight", "attn.norm_q.weight");
    vector("attn.k_norm.weight", "attn.norm_k.weight");
    vector("norm1.weight", "norm1.weight");
    vector("norm2.weight", "norm2.weight");
  }

  Tables() {
    table.layers = {
        {"video_patch_proj", {"proj_in"}},
        {"audio_patch_proj", {"audio_proj_in"}},
        {"condition_proj", {"context_embedder"}},
        {"time_embedder.proj_in", {"time_embedder.linear_1"}},
        {"time_embedder.proj_out", {"time_embedder.linear_2"}},
        {"final_layer.adaln_proj.linear", {"norm_out.linear"}},
        {"final_layer.video_out", {"proj_out"}},
        {"final_layer.audio_out", {"audio_proj_out"}},
        {"blocks.#.adaln_proj.linear", {"transformer_blocks.#.adaln_proj.linear"}},
        // Of models with sparse attention.
        {"blocks.#.attn.to_gate_compress", {"transformer_blocks.#.attn.to_gate_compress"}}};
    table.tensors = {
        {"token_refiner.final_norm.weight", {"token_refiner.final_norm.weight"}},
        {"final_layer.norm.weight", {"norm_out.norm.weight"}},
        // Of pruned models, whose names here are those of other tools: diffusers has none.
        {"adaln_t_table", {"time_embedder.table"}},
        {"blocks.#.adaln_proj.linear.bias", {"transformer_blocks.#.adaln_proj.folded_bias"}},
        {"final_layer.adaln_proj.linear.bias", {"norm_out.folded_bias"}}};
    add_block("blocks.#.", "transformer_blocks.#.");
    add_block("token_refiner.blocks.#.", "token_refiner.refiner_blocks.#.");
  }
};

}  // namespace

const NameTable& names() {
  static const Tables& tables = *new Tables;
  return tables.table;
}

std::optional<std::string> recognise(const formats::Checkpoint& checkpoint) {
  for (const std::string prefix :
       {"", "model.diffusion_model.", "diffusion_model.", "transformer."})
    for (const auto& [embedder, block] :
         {std::pair("audio_patch_proj", "token_refiner.blocks.0.attn.qkv_proj"),
          {"audio_proj_in", "token_refiner.refiner_blocks.0.attn.to_q"}})
      if (checkpoint.find(prefix + embedder) && checkpoint.find(prefix + block)) return prefix;
  return {};
}

}  // namespace parfait::models::minimax_h3
