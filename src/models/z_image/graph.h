// The forward pass of Z-Image. MODEL.md has the formulas.
#ifndef PARFAIT_MODELS_Z_IMAGE_GRAPH_H_
#define PARFAIT_MODELS_Z_IMAGE_GRAPH_H_

#include <memory>
#include <string>

#include "models/embeddings.h"
#include "models/transformer.h"
#include "models/z_image/config.h"

namespace parfait::models::z_image {

// Rows of the image and of the caption are padded to multiples of this.
inline constexpr std::uint64_t row_multiple = 32;

struct Prepared : Conditioning {
  std::uint64_t text_rows = 0, image_rows = 0;  // padded
  std::uint64_t real_image_rows = 0;
  Buffer text;     // the refined caption, F32 [text rows, D]
  RopeTable rope;  // image rows, then caption rows
};

class ZImage : public Transformer {
 public:
  explicit ZImage(Found found);

  const Config& config() const { return config_; }

  std::string_view name() const override { return name_; }
  TextNeeds text_needs() const override;
  std::uint64_t latent_channels() const override { return config_.patch_columns / 4; }
  std::vector<Block> blocks() const override;
  Buffer rows_from_noise(std::span<const float> noise, ImageSize size) const override;
  Buffer latent_image(const Buffer& rows, ImageSize size) const override;
  std::vector<float> sigmas(std::uint64_t steps, ImageSize size) const override;
  Working working(const Workplace& place, std::uint64_t text_rows, ImageSize size) const override;
  std::uint64_t default_steps() const override { return 8; }

  Result<std::unique_ptr<Conditioning>> prepare(Run& run, const ConstMatrix& text,
                                                ImageSize size) override;
  Result<Done> velocity(Run& run, const Conditioning& conditioning, float sigma, float guidance,
                        const ConstMatrix& x, const Matrix& velocity) override;

 private:
  struct Work {
    Buffer stream;  // F32 [rows, D]: image, then caption
    Buffer normed;  // [rows, D]
    Buffer qkv;     // [rows, 3D]
    Buffer mixed;   // [rows, D]
    Buffer mlp;     // [rows, 2F]: gate, up
    Buffer branch;  // F32 [rows, D]
  };
  // Blocks of weights that are no transformer blocks.
  enum : std::size_t { always_block, text_block, first_refiner_block };
  // Where a block works: rows [first, first + count) of the stream.
  struct Rows {
    std::uint64_t first = 0, count = 0;
  };
  void reserve(Run& run, std::uint64_t rows);
  // time: F32 [1, time width], or null in the context refiner.
  Result<Done> block(Run& run, const TransformerBlock& block, const Buffer* time,
                     const RopeTable& rope, Rows rows);

  Config config_;
  Layers layers_;
  std::string name_;
  Work work_;
};

}  // namespace parfait::models::z_image

#endif  // PARFAIT_MODELS_Z_IMAGE_GRAPH_H_
