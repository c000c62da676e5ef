#include "models/z_image/config.h"

#include "base/result.h"

namespace parfait::models::z_image {
namespace {

constexpr std::uint64_t most_blocks = 1024;
enum class Modulated { yes, no };

Result<TransformerBlock> find_block(const Finder& finder, const Config& c, const std::string& name,
                                    Modulated modulated) {
  const std::string a = name + ".attention.", f = name + ".feed_forward.";
  TransformerBlock b;
  PARFAIT_TRY(b.qkv, finder.linear({{a + "qkv"}, {a + "to_q", a + "to_k", a + "to_v"}}, 3 * c.width,
                                   c.width));
  PARFAIT_TRY(b.out, finder.linear({{a + "out"}, {a + "to_out.0"}}, c.width, c.width));
  PARFAIT_TRY(b.gate, finder.linear({{f + "w1"}}, c.mlp, c.width));
  PARFAIT_TRY(b.down, finder.linear({{f + "w2"}}, c.width, c.mlp));
  PARFAIT_TRY(b.up, finder.linear({{f + "w3"}}, c.mlp, c.width));
  PARFAIT_TRY(b.query_norm, finder.vector({a + "q_norm.weight", a + "norm_q.weight"}, c.head_size));
  PARFAIT_TRY(b.key_norm, finder.vector({a + "k_norm.weight", a + "norm_k.weight"}, c.head_size));
  PARFAIT_TRY(b.attention_norm1, finder.vector({name + ".attention_norm1.weight"}, c.width));
  PARFAIT_TRY(b.attention_norm2, finder.vector({name + ".attention_norm2.weight"}, c.width));
  PARFAIT_TRY(b.ffn_norm1, finder.vector({name + ".ffn_norm1.weight"}, c.width));
  PARFAIT_TRY(b.ffn_norm2, finder.vector({name + ".ffn_norm2.weight"}, c.width));
  if (modulated == Modulated::yes) {
    PARFAIT_TRY(b.modulation,
                finder.linear({{name + ".adaLN_modulation.0"}}, 4 * c.width, c.time_width));
  }
  return b;
}

Result<std::vector<TransformerBlock>> find_blocks(const Finder& finder, const Config& c,
                                                  const std::string& name, Modulated modulated) {
  std::vector<TransformerBlock> blocks;
  for (std::uint64_t n = 0; n < most_blocks; ++n) {
    const std::string one = fmt::format("{}.{}", name, n);
    if (!finder.has_layer(one + ".feed_forward.w1")) break;
    PARFAIT_TRY(TransformerBlock block, find_block(finder, c, one, modulated));
    blocks.push_back(std::move(block));
  }
  return blocks;
}

Result<Config> find_config(const Finder& finder) {
  Config c;
  PARFAIT_TRY(const Linear image_in,
              finder.linear({{"x_embedder"}, {"all_x_embedder.2-1"}}, any, any));
  PARFAIT_TRY(const Linear text_in, finder.linear({{"cap_embedder.1"}}, image_in.rows, any));
  PARFAIT_TRY(const Linear time_in, finder.linear({{"t_embedder.mlp.0"}}, any, any));
  PARFAIT_TRY(const Linear time_out, finder.linear({{"t_embedder.mlp.2"}}, any, time_in.rows));
  PARFAIT_TRY(const Linear gate, finder.linear({{"layers.0.feed_forward.w1"}}, any, image_in.rows));
  PARFAIT_TRY(
      const std::vector<float> norm,
      finder.vector({"layers.0.attention.q_norm.weight", "layers.0.attention.norm_q.weight"}, any));
  c.width = image_in.rows;
  c.patch_columns = image_in.columns;
  c.text_width = text_in.columns;
  c.sinusoid = time_in.columns;
  c.time_width = time_out.rows;
  c.mlp = gate.rows;
  c.head_size = norm.size();
  if (c.head_size == 0 || c.head_size % 16 != 0 || c.head_size > 256 || c.width % c.head_size != 0)
    return make_error(ErrorCode::model_tensor,
                      "a head of {} columns (from the query norm) does not fit a width of {}",
                      c.head_size, c.width);
  if (c.patch_columns % 4 != 0)
    return make_error(ErrorCode::model_tensor,
                      "{} has {} columns, expected 4 · latent channels (patches of 2 × 2)",
                      printable(image_in.layers.front()), c.patch_columns);
  if (c.sinusoid % 2 != 0)
    return make_error(ErrorCode::model_tensor, "{} has {} columns, expected an even number",
                      printable(time_in.layers.front()), c.sinusoid);
  c.heads = c.width / c.head_size;
  return c;
}

}  // namespace

std::optional<std::string> recognise(const formats::Checkpoint& checkpoint) {
  for (const char* prefix : {"", "model.diffusion_model.", "diffusion_model.", "transformer."})
    if (checkpoint.find(prefix + std::string("cap_embedder.1")) &&
        checkpoint.find(prefix + std::string("noise_refiner.0.feed_forward.w1")) &&
        checkpoint.find(prefix + std::string("t_embedder.mlp.0")))
      return prefix;
  return {};
}

Result<Found> find(const formats::Checkpoint& checkpoint, const std::string& prefix) {
  const Finder finder(checkpoint, "a Z-Image transformer", prefix);
  Found found;
  PARFAIT_TRY(found.config, find_config(finder));
  const Config& c = found.config;
  Layers& l = found.layers;
  PARFAIT_TRY(l.image_in,
              finder.linear({{"x_embedder"}, {"all_x_embedder.2-1"}}, c.width, c.patch_columns));
  PARFAIT_TRY(l.text_norm, finder.vector({"cap_embedder.0.weight"}, c.text_width));
  PARFAIT_TRY(l.text_in, finder.linear({{"cap_embedder.1"}}, c.width, c.text_width));
  PARFAIT_TRY(l.time_in, finder.linear({{"t_embedder.mlp.0"}}, any, c.sinusoid));
  PARFAIT_TRY(l.time_out, finder.linear({{"t_embedder.mlp.2"}}, c.time_width, l.time_in.rows));
  PARFAIT_TRY(l.image_pad, finder.vector({"x_pad_token"}, c.width));
  PARFAIT_TRY(l.text_pad, finder.vector({"cap_pad_token"}, c.width));
  PARFAIT_TRY(l.noise_refiner, find_blocks(finder, c, "noise_refiner", Modulated::yes));
  PARFAIT_TRY(l.context_refiner, find_blocks(finder, c, "context_refiner", Modulated::no));
  PARFAIT_TRY(l.blocks, find_blocks(finder, c, "layers", Modulated::yes));
  PARFAIT_TRY(l.final_modulation, finder.linear({{"final_layer.adaLN_modulation.1"},
                                                 {"all_final_layer.2-1.adaLN_modulation.1"}},
                                                c.width, c.time_width));
  PARFAIT_TRY(l.final_out, finder.linear({{"final_layer.linear"}, {"all_final_layer.2-1.linear"}},
                                         c.patch_columns, c.width));
  return found;
}

}  // namespace parfait::models::z_image
