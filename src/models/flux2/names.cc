#include "models/flux2/names.h"

namespace parfait::models::flux2 {

const NameTable& names() {
  static const NameTable table = {
      .model = "FLUX.2",
      .architecture = "flux",
      .layers =
          {
              {"img_in", {"x_embedder"}},
              {"txt_in", {"context_embedder"}},
              {"time_in.in_layer", {"time_guidance_embed.timestep_embedder.linear_1"}},
              {"time_in.out_layer", {"time_guidance_embed.timestep_embedder.linear_2"}},
              {"guidance_in.in_layer", {"time_guidance_embed.guidance_embedder.linear_1"}},
              {"guidance_in.out_layer", {"time_guidance_embed.guidance_embedder.linear_2"}},
              {"double_stream_modulation_img.lin", {"double_stream_modulation_img.linear"}},
              {"double_stream_modulation_txt.lin", {"double_stream_modulation_txt.linear"}},
              {"single_stream_modulation.lin", {"single_stream_modulation.linear"}},
              {"double_blocks.#.img_attn.qkv",
               {"transformer_blocks.#.attn.to_q", "transformer_blocks.#.attn.to_k",
                "transformer_blocks.#.attn.to_v"}},
              {"double_blocks.#.txt_attn.qkv",
               {"transformer_blocks.#.attn.add_q_proj", "transformer_blocks.#.attn.add_k_proj",
                "transformer_blocks.#.attn.add_v_proj"}},
              {"double_blocks.#.img_attn.proj", {"transformer_blocks.#.attn.to_out.0"}},
              {"double_blocks.#.txt_attn.proj", {"transformer_blocks.#.attn.to_add_out"}},
              {"double_blocks.#.img_mlp.0", {"transformer_blocks.#.ff.linear_in"}},
              {"double_blocks.#.img_mlp.2", {"transformer_blocks.#.ff.linear_out"}},
              {"double_blocks.#.txt_mlp.0", {"transformer_blocks.#.ff_context.linear_in"}},
              {"double_blocks.#.txt_mlp.2", {"transformer_blocks.#.ff_context.linear_out"}},
              {"single_blocks.#.linear1", {"single_transformer_blocks.#.attn.to_qkv_mlp_proj"}},
              {"single_blocks.#.linear2", {"single_transformer_blocks.#.attn.to_out"}},
              // Shift, scale in Comfy's; scale, shift in diffusers'.
              {"final_layer.adaLN_modulation.1",
               {"norm_out.linear"},
               NamePair::Rows::halves_swapped},
              {"final_layer.linear", {"proj_out"}},
          },
      .tensors =
          {
              {"double_blocks.#.img_attn.norm.query_norm.scale",
               {"transformer_blocks.#.attn.norm_q.weight"},
               NamePair::Rows::same,
               "double_blocks.#.img_attn.norm.query_norm.weight"},
              {"double_blocks.#.img_attn.norm.key_norm.scale",
               {"transformer_blocks.#.attn.norm_k.weight"},
               NamePair::Rows::same,
               "double_blocks.#.img_attn.norm.key_norm.weight"},
              {"double_blocks.#.txt_attn.norm.query_norm.scale",
               {"transformer_blocks.#.attn.norm_added_q.weight"},
               NamePair::Rows::same,
               "double_blocks.#.txt_attn.norm.query_norm.weight"},
              {"double_blocks.#.txt_attn.norm.key_norm.scale",
               {"transformer_blocks.#.attn.norm_added_k.weight"},
               NamePair::Rows::same,
               "double_blocks.#.txt_attn.norm.key_norm.weight"},
              {"single_blocks.#.norm.query_norm.scale",
               {"single_transformer_blocks.#.attn.norm_q.weight"},
               NamePair::Rows::same,
               "single_blocks.#.norm.query_norm.weight"},
              {"single_blocks.#.norm.key_norm.scale",
               {"single_transformer_blocks.#.attn.norm_k.weight"},
               NamePair::Rows::same,
               "single_blocks.#.norm.key_norm.weight"},
          },
  };
  return table;
}

}  // namespace parfait::models::flux2
