#include "models/qwen3/names.h"

#include <algorithm>

namespace parfait::models::qwen3 {

const NameTable& llama_names() {
  static const NameTable table = {
      .model = "Qwen3",
      .architecture = "qwen3",
      .first = NameStyle::transformers,
      .second = NameStyle::llama_cpp,
      .layers = {{"embed_tokens", {"token_embd"}},
                 {"layers.#.self_attn.q_proj", {"blk.#.attn_q"}},
                 {"layers.#.self_attn.k_proj", {"blk.#.attn_k"}},
                 {"layers.#.self_attn.v_proj", {"blk.#.attn_v"}},
                 {"layers.#.self_attn.o_proj", {"blk.#.attn_output"}},
                 {"layers.#.mlp.gate_proj", {"blk.#.ffn_gate"}},
                 {"layers.#.mlp.up_proj", {"blk.#.ffn_up"}},
                 {"layers.#.mlp.down_proj", {"blk.#.ffn_down"}}},
      .tensors = {{"layers.#.self_attn.q_norm.weight", {"blk.#.attn_q_norm.weight"}},
                  {"layers.#.self_attn.k_norm.weight", {"blk.#.attn_k_norm.weight"}},
                  {"layers.#.input_layernorm.weight", {"blk.#.attn_norm.weight"}},
                  {"layers.#.post_attention_layernorm.weight", {"blk.#.ffn_norm.weight"}},
                  {"norm.weight", {"output_norm.weight"}}},
      .beside = {{"lm_head", {"output"}}},
  };
  return table;
}

std::optional<std::string> recognise_names(const formats::Checkpoint& checkpoint) {
  for (const std::string prefix : {"model.", ""}) {
    if (!checkpoint.find(prefix + "layers.0.self_attn.q_proj") ||
        !checkpoint.find(prefix + "layers.0.mlp.gate_proj") ||
        !checkpoint.index->find(prefix + "layers.0.self_attn.q_norm.weight"))
      continue;
    const auto tensors = checkpoint.index->tensors();
    if (std::ranges::any_of(tensors, [](const TensorInfo& tensor) {
          return tensor.name.find("visual.") != std::string_view::npos;
        }))
      return {};
    return prefix;
  }
  return {};
}

}  // namespace parfait::models::qwen3
