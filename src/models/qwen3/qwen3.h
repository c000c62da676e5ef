// The Qwen3 decoder as a text encoder: hidden states after chosen layers. MODEL.md has names,
// shapes and formulas.
#ifndef PARFAIT_MODELS_QWEN3_QWEN3_H_
#define PARFAIT_MODELS_QWEN3_QWEN3_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/config_file.h"
#include "models/run.h"

namespace parfait::models::qwen3 {

struct Config {
  std::uint64_t width = 0, heads = 0, kv_heads = 0, head_size = 0, mlp = 0, vocabulary = 0;
  std::uint64_t layers = 0;  // in the file
  std::uint64_t depth = 0;   // of the whole model: a file may lack the last ones
  double rope_theta = 1e6;
  float epsilon = 1e-6f;
};

struct DecoderLayer {
  Linear q, k, v, o, gate, up, down;
  std::vector<float> input_norm, post_norm, query_norm, key_norm;
};

class Qwen3 {
 public:
  // Names and shapes only; max_layers: more are not looked for, 0: all.
  static Result<std::unique_ptr<Qwen3>> find(const formats::Checkpoint& checkpoint,
                                             const ConfigFile& config, std::string_view path);

  const Config& config() const { return config_; }
  std::string name() const;
  // The blocks of the first so many layers. Nothing is used throughout: block 0 is empty.
  std::vector<Block> blocks(std::uint64_t layers) const;

  // What encode() holds beside the weights and the states, for so many ids.
  std::uint64_t working_bytes(const Workplace& place, std::uint64_t ids) const;

  // states: [ids, taps · width]: the hidden states after so many layers each, side by side, taps in
  // ascending order. mask: one an id, 0 for padding; padding is seen by nobody.
  Result<Done> encode(Run& run, std::span<const std::int64_t> ids,
                      std::span<const std::uint8_t> mask, std::span<const std::uint64_t> taps,
                      Buffer& states) const;

 private:
  Config config_;
  Linear embedding_;
  std::vector<DecoderLayer> layers_;
};

}  // namespace parfait::models::qwen3

#endif  // PARFAIT_MODELS_QWEN3_QWEN3_H_
