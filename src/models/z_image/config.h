// Z-Image: what a checkpoint of it holds. MODEL.md has names and shapes.
#ifndef PARFAIT_MODELS_Z_IMAGE_CONFIG_H_
#define PARFAIT_MODELS_Z_IMAGE_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/finder.h"

namespace parfait::models::z_image {

// D: width. A patch has 2 × 2 pixels of the latent image.
struct Config {
  std::uint64_t width = 0, heads = 0, head_size = 0, mlp = 0;
  std::uint64_t patch_columns = 0;  // 4 · latent channels
  std::uint64_t text_width = 0, sinusoid = 0, time_width = 0;
  double rope_theta = 256;
  float norm_epsilon = 1e-5f, final_epsilon = 1e-6f;
  std::array<std::uint64_t, 3> axes() const {
    return {head_size / 4, head_size / 8 * 3, head_size / 8 * 3};
  }
};

struct TransformerBlock {
  Linear qkv, out, gate, down, up;  // gate, down, up: feed_forward.w1, w2, w3
  std::vector<float> query_norm, key_norm;
  std::vector<float> attention_norm1, attention_norm2, ffn_norm1, ffn_norm2;
  Linear modulation;  // scale, gate; scale, gate. Empty in the context refiner
};

struct Layers {
  Linear image_in, text_in, time_in, time_out;
  std::vector<float> text_norm, image_pad, text_pad;
  std::vector<TransformerBlock> noise_refiner, context_refiner, blocks;
  Linear final_modulation, final_out;
};

std::optional<std::string> recognise(const formats::Checkpoint& checkpoint);

struct Found {
  Config config;
  Layers layers;
};
Result<Found> find(const formats::Checkpoint& checkpoint, const std::string& prefix);

}  // namespace parfait::models::z_image

#endif  // PARFAIT_MODELS_Z_IMAGE_CONFIG_H_
