// The forward pass of FLUX.2. MODEL.md has the formulas.
#ifndef PARFAIT_MODELS_FLUX2_GRAPH_H_
#define PARFAIT_MODELS_FLUX2_GRAPH_H_

#include <memory>
#include <string>

#include "models/embeddings.h"
#include "models/flux2/config.h"
#include "models/transformer.h"

namespace parfait::models::flux2 {

struct Prepared : Conditioning {
  std::uint64_t text_rows = 0, image_rows = 0;
  Buffer text;  // txt_in · text states, [text rows, D]
  RopeTable rope;
};

class Flux2 : public Transformer {
 public:
  explicit Flux2(Found found);

  const Config& config() const { return config_; }

  std::string_view name() const override { return name_; }
  TextNeeds text_needs() const override;
  std::uint64_t latent_channels() const override { return config_.in_channels / 4; }
  std::vector<Block> blocks() const override;
  Buffer rows_from_noise(std::span<const float> noise, ImageSize size) const override;
  Buffer latent_image(const Buffer& rows, ImageSize size) const override;
  std::vector<float> sigmas(std::uint64_t steps, ImageSize size) const override;
  Working working(const Workplace& place, std::uint64_t text_rows, ImageSize size) const override;
  std::uint64_t default_steps() const override { return 4; }
  bool takes_guidance() const override { return !layers_.guidance_in.empty(); }

  Result<std::unique_ptr<Conditioning>> prepare(Run& run, const ConstMatrix& text,
                                                ImageSize size) override;
  // Positions are (t, h, w, l), by row.
  Result<std::unique_ptr<Prepared>> prepare_at(Run& run, const ConstMatrix& text,
                                               std::span<const Position> text_ids,
                                               std::span<const Position> image_ids);
  Result<Done> velocity(Run& run, const Conditioning& conditioning, float sigma, float guidance,
                        const ConstMatrix& x, const Matrix& velocity) override;

 private:
  // A pass's activations; all rows are text then image.
  struct Work {
    Buffer stream;  // F32 [rows, D]
    Buffer normed;  // [rows, D]
    Buffer wide;    // [rows, 3D + 2F]: q, k, v, gate, up
    Buffer joined;  // [rows, D + F]: attention, mlp
    Buffer branch;  // F32 [rows, D]
  };
  // Blocks of weights that are no double or single blocks.
  enum : std::size_t {
    always_block,
    text_block,
    time_block,
    image_modulation_block,
    text_modulation_block,
    first_double_block
  };
  // Shifts, scales and gates that the time gives, F32 [1, ...].
  struct DoubleModulation {
    Buffer image, text;
  };
  void reserve(Run& run, std::uint64_t rows);
  Result<Buffer> embed_time(Run& run, float sigma, float guidance);
  Result<Buffer> modulate(Run& run, std::size_t block, const Linear& linear, const Buffer& time);
  Result<Done> double_block(Run& run, const DoubleBlock& block, const DoubleModulation& m,
                            const Prepared& p);
  Result<Done> single_block(Run& run, const SingleBlock& block, const Buffer& modulation,
                            const Prepared& p);
  Result<Done> attend(Run& run, const Prepared& p);

  Config config_;
  Layers layers_;
  std::string name_;
  Work work_;
};

}  // namespace parfait::models::flux2

#endif  // PARFAIT_MODELS_FLUX2_GRAPH_H_
