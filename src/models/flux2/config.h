// FLUX.2 (klein 4B and 9B, dev): what a checkpoint of it holds. MODEL.md has names and shapes.
#ifndef PARFAIT_MODELS_FLUX2_CONFIG_H_
#define PARFAIT_MODELS_FLUX2_CONFIG_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/finder.h"

namespace parfait::models::flux2 {

// D: width, H: heads, F: columns of the second MLP product.
struct Config {
  std::uint64_t width = 0, heads = 0, head_size = 0, mlp = 0;
  std::uint64_t in_channels = 0;  // of a patch: 4 · latent channels
  std::uint64_t text_width = 0, sinusoid = 0;
  double rope_theta = 2000;
  float epsilon = 1e-6f;
  std::array<std::uint64_t, 4> axes() const {
    return {head_size / 4, head_size / 4, head_size / 4, head_size / 4};
  }
};

// One stream (image or text) of a double block.
struct Stream {
  Linear qkv, proj, mlp_in, mlp_out;
  std::vector<float> query_norm, key_norm;
};
struct DoubleBlock {
  Stream image, text;
};
struct SingleBlock {
  Linear in;   // rows: q, k, v, gate, up
  Linear out;  // columns: attention, mlp
  std::vector<float> query_norm, key_norm;
};

struct Layers {
  Linear image_in, text_in, time_in, time_out, guidance_in, guidance_out;  // guidance: may be empty
  Linear image_modulation, text_modulation, single_modulation;
  std::vector<DoubleBlock> double_blocks;
  std::vector<SingleBlock> single_blocks;
  Linear final_modulation, final_out;
  // Rows of final_modulation: shift then scale in BFL's and Comfy's files, scale then shift in
  // diffusers'.
  enum class FinalOrder { shift_scale, scale_shift } final_order = FinalOrder::shift_scale;
};

// Whether these tensors are FLUX.2's, and under which prefix.
std::optional<std::string> recognise(const formats::Checkpoint& checkpoint);

struct Found {
  Config config;
  Layers layers;
};
Result<Found> find(const formats::Checkpoint& checkpoint, const std::string& prefix);

}  // namespace parfait::models::flux2

#endif  // PARFAIT_MODELS_FLUX2_CONFIG_H_
