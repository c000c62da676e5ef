#include "models/transformer.h"

#include "base/result.h"
#include "models/flux2/graph.h"
#include "models/z_image/graph.h"

namespace parfait::models {
namespace {

// Files that people take for one of ours, by a tensor that only they have.
struct Stranger {
  const char* layer;
  const char* what;
};
constexpr Stranger strangers[] = {
    {"double_blocks.0.img_mod.lin", "a FLUX.1 transformer"},
    {"model.layers.0.self_attn.q_proj", "a text encoder"},
    {"layers.0.self_attn.q_proj", "a text encoder"},
    {"decoder.mid.block_1.conv1", "an image auto-encoder"},
    {"decoder.mid_block.resnets.0.conv1", "an image auto-encoder"},
    {"blocks.0.attn.qkv_proj", "a MiniMax-H3 transformer"},
    {"net.blocks.0.self_attn.q_proj", "an Anima transformer"},
};

}  // namespace

Result<std::unique_ptr<Transformer>> find_transformer(const formats::Checkpoint& checkpoint,
                                                      std::string_view path) {
  if (const auto prefix = flux2::recognise(checkpoint)) {
    PARFAIT_TRY(flux2::Found found, flux2::find(checkpoint, *prefix));
    return std::unique_ptr<Transformer>(std::make_unique<flux2::Flux2>(std::move(found)));
  }
  if (const auto prefix = z_image::recognise(checkpoint)) {
    PARFAIT_TRY(z_image::Found found, z_image::find(checkpoint, *prefix));
    return std::unique_ptr<Transformer>(std::make_unique<z_image::ZImage>(std::move(found)));
  }
  std::string what = "its architecture is not known";
  for (const Stranger& stranger : strangers)
    for (const char* prefix : {"", "model.diffusion_model."})
      if (checkpoint.index->find(std::string(prefix) + stranger.layer + ".weight"))
        what = fmt::format("it is {}", stranger.what);
  return make_error(ErrorCode::model_unknown,
                    "{}: this is no transformer that can be run: {}; FLUX.2 (klein, dev) and "
                    "Z-Image are, by their tensors' names",
                    printable(path, 1000), what);
}

}  // namespace parfait::models
