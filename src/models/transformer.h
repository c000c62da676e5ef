// A denoising transformer, whatever its architecture: what the sampler needs of it.
//
// Latents are float rows, one a patch, in the order in which the model takes them. An architecture
// knows how its rows come from noise of torch's shape, and how they become the image that the
// auto-encoder decodes.
#ifndef PARFAIT_MODELS_TRANSFORMER_H_
#define PARFAIT_MODELS_TRANSFORMER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/run.h"

namespace parfait::models {

// How a transformer wants its prompt.
struct TextNeeds {
  enum class Template { klein, z_image } chat_template = Template::klein;
  // Which hidden states, side by side: after a quarter, a half and three quarters of the encoder's
  // layers; or that before the last layer's.
  enum class States { quarters, before_last } states = States::quarters;
  bool padded = false;  // all of max_tokens rows are passed on, padding included
  std::uint64_t max_tokens = 512;
  std::uint64_t width = 0;  // of a row that the transformer takes
};

// A prompt and an image size, as the transformer needs them on every step.
struct Conditioning {
  virtual ~Conditioning() = default;
};

class Transformer {
 public:
  virtual ~Transformer() = default;

  virtual std::string_view name() const = 0;  // "FLUX.2 (5 + 20 blocks, width 3072)"
  virtual TextNeeds text_needs() const = 0;
  virtual std::uint64_t latent_channels() const = 0;  // of the auto-encoder's latent image
  // Block 0 always stays; then those that only prepare() needs; then a pass.
  virtual std::vector<Block> blocks() const = 0;
  // How many numbers torch would draw for this picture, and the rows made of them. size is that of
  // the latent image, height / 8 by width / 8.
  virtual Buffer rows_from_noise(std::span<const float> noise, ImageSize size) const = 0;
  // Channels last: [height · width, latent_channels] from rows.
  virtual Buffer latent_image(const Buffer& rows, ImageSize size) const = 0;
  // σ from 1 to 0, steps + 1 of them.
  virtual std::vector<float> sigmas(std::uint64_t steps, ImageSize size) const = 0;
  virtual std::uint64_t default_steps() const = 0;
  // Whether guidance is an input of the model, and not the difference of two runs.
  virtual bool takes_guidance() const { return false; }
  // What is held beside the weights, counted before anything is loaded.
  struct Working {
    std::uint64_t conditioning = 0;  // by each of them, from prepare() on
    std::uint64_t preparing = 0;     // by prepare(), beside them and its input
    std::uint64_t pass = 0;          // by velocity(), beside them and its matrices
  };
  virtual Working working(const Workplace& place, std::uint64_t text_rows,
                          ImageSize size) const = 0;

  virtual Result<std::unique_ptr<Conditioning>> prepare(Run& run, const ConstMatrix& text,
                                                        ImageSize size) = 0;
  // velocity = noise − image, [rows, columns of x], F32.
  virtual Result<Done> velocity(Run& run, const Conditioning& conditioning, float sigma,
                                float guidance, const ConstMatrix& x, const Matrix& velocity) = 0;
};

// Recognised by its tensors.
Result<std::unique_ptr<Transformer>> find_transformer(const formats::Checkpoint& checkpoint,
                                                      std::string_view path);

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_TRANSFORMER_H_
