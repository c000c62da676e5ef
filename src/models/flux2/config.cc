#include "models/flux2/config.h"

#include "base/result.h"

namespace parfait::models::flux2 {
namespace {

// The larger models have a few dozen blocks; a file of another kind must not make us look forever.
constexpr std::uint64_t most_blocks = 1024;

std::vector<std::string> names(std::string_view before, std::initializer_list<const char*> rest) {
  std::vector<std::string> all;
  for (const char* one : rest) all.push_back(std::string(before) + one);
  return all;
}

Result<Stream> find_stream(const Finder& finder, const Config& c, std::string_view bfl,
                           std::string_view diffusers, bool text) {
  const std::string b = fmt::format("{}.{}_", bfl, text ? "txt" : "img");
  const std::string d = fmt::format("{}.", diffusers);
  Stream s;
  PARFAIT_TRY(s.qkv, finder.linear(
                         {{b + "attn.qkv"},
                          text ? names(d, {"attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"})
                               : names(d, {"attn.to_q", "attn.to_k", "attn.to_v"})},
                         3 * c.width, c.width));
  PARFAIT_TRY(s.proj,
              finder.linear({{b + "attn.proj"}, {d + (text ? "attn.to_add_out" : "attn.to_out.0")}},
                            c.width, c.width));
  PARFAIT_TRY(s.mlp_in,
              finder.linear({{b + "mlp.0"}, {d + (text ? "ff_context.linear_in" : "ff.linear_in")}},
                            2 * c.mlp, c.width));
  PARFAIT_TRY(s.mlp_out, finder.linear({{b + "mlp.2"},
                                        {d + (text ? "ff_context.linear_out" : "ff.linear_out")}},
                                       c.width, c.mlp));
  PARFAIT_TRY(s.query_norm,
              finder.vector({b + "attn.norm.query_norm.scale", b + "attn.norm.query_norm.weight",
                             d + (text ? "attn.norm_added_q.weight" : "attn.norm_q.weight")},
                            c.head_size));
  PARFAIT_TRY(s.key_norm,
              finder.vector({b + "attn.norm.key_norm.scale", b + "attn.norm.key_norm.weight",
                             d + (text ? "attn.norm_added_k.weight" : "attn.norm_k.weight")},
                            c.head_size));
  return s;
}

// Shapes that the others follow from.
Result<Config> find_config(const Finder& finder) {
  Config c;
  PARFAIT_TRY(const Linear image_in, finder.linear({{"img_in"}, {"x_embedder"}}, any, any));
  PARFAIT_TRY(const Linear text_in,
              finder.linear({{"txt_in"}, {"context_embedder"}}, image_in.rows, any));
  PARFAIT_TRY(
      const Linear time_in,
      finder.linear({{"time_in.in_layer"}, {"time_guidance_embed.timestep_embedder.linear_1"}},
                    image_in.rows, any));
  PARFAIT_TRY(const Linear single_out, finder.linear({{"single_blocks.0.linear2"},
                                                      {"single_transformer_blocks.0.attn.to_out"}},
                                                     image_in.rows, any));
  PARFAIT_TRY(const std::vector<float> norm,
              finder.vector({"single_blocks.0.norm.query_norm.scale",
                             "single_blocks.0.norm.query_norm.weight",
                             "single_transformer_blocks.0.attn.norm_q.weight"},
                            any));
  c.width = image_in.rows;
  c.in_channels = image_in.columns;
  c.text_width = text_in.columns;
  c.sinusoid = time_in.columns;
  c.head_size = norm.size();
  if (single_out.columns <= c.width)
    return make_error(ErrorCode::model_tensor,
                      "{} has {} columns, expected more than the width of {}: attention and MLP",
                      printable(single_out.layers.front()), single_out.columns, c.width);
  c.mlp = single_out.columns - c.width;
  if (c.head_size == 0 || c.head_size % 8 != 0 || c.head_size > 256 || c.width % c.head_size != 0)
    return make_error(ErrorCode::model_tensor,
                      "a head of {} columns (from the query norm) does not fit a width of {}",
                      c.head_size, c.width);
  if (c.in_channels % 4 != 0)
    return make_error(ErrorCode::model_tensor,
                      "{} has {} columns, expected 4 · latent channels (patches of 2 × 2)",
                      printable(image_in.layers.front()), c.in_channels);
  if (c.sinusoid % 2 != 0)
    return make_error(ErrorCode::model_tensor, "{} has {} columns, expected an even number",
                      printable(time_in.layers.front()), c.sinusoid);
  c.heads = c.width / c.head_size;
  return c;
}

}  // namespace

std::optional<std::string> recognise(const formats::Checkpoint& checkpoint) {
  for (const char* prefix : {"", "model.diffusion_model.", "diffusion_model.", "transformer."})
    for (const char* anchor :
         {"double_stream_modulation_img.lin", "double_stream_modulation_img.linear"})
      if (checkpoint.find(std::string(prefix) + anchor)) return prefix;
  return {};
}

Result<Found> find(const formats::Checkpoint& checkpoint, const std::string& prefix) {
  const Finder finder(checkpoint, "a FLUX.2 transformer", prefix);
  Found found;
  PARFAIT_TRY(found.config, find_config(finder));
  const Config& c = found.config;
  Layers& l = found.layers;
  PARFAIT_TRY(l.image_in, finder.linear({{"img_in"}, {"x_embedder"}}, c.width, c.in_channels));
  PARFAIT_TRY(l.text_in, finder.linear({{"txt_in"}, {"context_embedder"}}, c.width, c.text_width));
  PARFAIT_TRY(l.time_in, finder.linear({{"time_in.in_layer"},
                                        {"time_guidance_embed.timestep_embedder.linear_1"}},
                                       c.width, c.sinusoid));
  PARFAIT_TRY(l.time_out, finder.linear({{"time_in.out_layer"},
                                         {"time_guidance_embed.timestep_embedder.linear_2"}},
                                        c.width, c.width));
  if (finder.has_layer("guidance_in.in_layer") ||
      finder.has_layer("time_guidance_embed.guidance_embedder.linear_1")) {
    PARFAIT_TRY(l.guidance_in, finder.linear({{"guidance_in.in_layer"},
                                              {"time_guidance_embed.guidance_embedder.linear_1"}},
                                             c.width, c.sinusoid));
    PARFAIT_TRY(l.guidance_out, finder.linear({{"guidance_in.out_layer"},
                                               {"time_guidance_embed.guidance_embedder.linear_2"}},
                                              c.width, c.width));
  }
  PARFAIT_TRY(l.image_modulation, finder.linear({{"double_stream_modulation_img.lin"},
                                                 {"double_stream_modulation_img.linear"}},
                                                6 * c.width, c.width));
  PARFAIT_TRY(l.text_modulation, finder.linear({{"double_stream_modulation_txt.lin"},
                                                {"double_stream_modulation_txt.linear"}},
                                               6 * c.width, c.width));
  PARFAIT_TRY(l.single_modulation,
              finder.linear({{"single_stream_modulation.lin"}, {"single_stream_modulation.linear"}},
                            3 * c.width, c.width));
  for (std::uint64_t n = 0; n < most_blocks; ++n) {
    const std::string bfl = fmt::format("double_blocks.{}", n),
                      diffusers = fmt::format("transformer_blocks.{}", n);
    if (!finder.has_layer(bfl + ".img_attn.qkv") && !finder.has_layer(diffusers + ".attn.to_q"))
      break;
    DoubleBlock block;
    PARFAIT_TRY(block.image, find_stream(finder, c, bfl, diffusers, false));
    PARFAIT_TRY(block.text, find_stream(finder, c, bfl, diffusers, true));
    l.double_blocks.push_back(std::move(block));
  }
  for (std::uint64_t n = 0; n < most_blocks; ++n) {
    const std::string b = fmt::format("single_blocks.{}.", n),
                      d = fmt::format("single_transformer_blocks.{}.attn.", n);
    if (!finder.has_layer(b + "linear1") && !finder.has_layer(d + "to_qkv_mlp_proj")) break;
    SingleBlock block;
    PARFAIT_TRY(block.in, finder.linear({{b + "linear1"}, {d + "to_qkv_mlp_proj"}},
                                        3 * c.width + 2 * c.mlp, c.width));
    PARFAIT_TRY(block.out,
                finder.linear({{b + "linear2"}, {d + "to_out"}}, c.width, c.width + c.mlp));
    PARFAIT_TRY(block.query_norm, finder.vector({b + "norm.query_norm.scale",
                                                 b + "norm.query_norm.weight", d + "norm_q.weight"},
                                                c.head_size));
    PARFAIT_TRY(block.key_norm, finder.vector({b + "norm.key_norm.scale",
                                               b + "norm.key_norm.weight", d + "norm_k.weight"},
                                              c.head_size));
    l.single_blocks.push_back(std::move(block));
  }
  if (!finder.has_layer("final_layer.adaLN_modulation.1"))
    l.final_order = Layers::FinalOrder::scale_shift;
  PARFAIT_TRY(l.final_modulation,
              finder.linear({{"final_layer.adaLN_modulation.1"}, {"norm_out.linear"}}, 2 * c.width,
                            c.width));
  PARFAIT_TRY(l.final_out,
              finder.linear({{"final_layer.linear"}, {"proj_out"}}, c.in_channels, c.width));
  return found;
}

}  // namespace parfait::models::flux2
