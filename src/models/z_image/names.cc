#include "models/z_image/names.h"

#include <deque>

namespace parfait::models::z_image {
namespace {

// Names with a stem before them; the strings live as long as the table.
class Builder {
 public:
  void layer(std::string comfy, std::vector<std::string> diffusers) {
    table.layers.push_back(pair(std::move(comfy), std::move(diffusers)));
  }
  void tensor(std::string comfy, std::vector<std::string> diffusers) {
    table.tensors.push_back(pair(std::move(comfy), std::move(diffusers)));
  }
  void same_layer(const std::string& name) { layer(name, {name}); }
  void same_tensor(const std::string& name) { tensor(name, {name}); }

  NameTable table{.model = "Z-Image", .architecture = "lumina2", .layers = {}, .tensors = {}};

 private:
  NamePair pair(std::string comfy, std::vector<std::string> diffusers) {
    NamePair names;
    names.first = texts_.emplace_back(std::move(comfy));
    for (std::string& one : diffusers) names.second.push_back(texts_.emplace_back(std::move(one)));
    return names;
  }
  std::deque<std::string> texts_;
};

void build(Builder& b) {
  b.layer("x_embedder", {"all_x_embedder.2-1"});
  b.layer("final_layer.linear", {"all_final_layer.2-1.linear"});
  b.layer("final_layer.adaLN_modulation.1", {"all_final_layer.2-1.adaLN_modulation.1"});
  for (const char* same : {"cap_embedder.1", "t_embedder.mlp.0", "t_embedder.mlp.2"})
    b.same_layer(same);
  for (const char* same : {"cap_embedder.0.weight", "x_pad_token", "cap_pad_token"})
    b.same_tensor(same);
  for (const char* blocks : {"layers.#.", "noise_refiner.#.", "context_refiner.#."}) {
    const std::string block = blocks, a = block + "attention.";
    b.layer(a + "qkv", {a + "to_q", a + "to_k", a + "to_v"});
    b.layer(a + "out", {a + "to_out.0"});
    b.tensor(a + "q_norm.weight", {a + "norm_q.weight"});
    b.tensor(a + "k_norm.weight", {a + "norm_k.weight"});
    for (const char* same :
         {"feed_forward.w1", "feed_forward.w2", "feed_forward.w3", "adaLN_modulation.0"})
      b.same_layer(block + same);
    for (const char* same : {"attention_norm1.weight", "attention_norm2.weight", "ffn_norm1.weight",
                             "ffn_norm2.weight"})
      b.same_tensor(block + same);
  }
}

}  // namespace

const NameTable& names() {
  static const Builder& builder = []() -> Builder& {
    static Builder b;
    build(b);
    return b;
  }();
  return builder.table;
}

}  // namespace parfait::models::z_image
