// The decoder of FLUX's image auto-encoders (FLUX.1 and FLUX.2): latents to pixels. MODEL.md has
// names, shapes and formulas.
#ifndef PARFAIT_MODELS_KL_DECODER_KL_DECODER_H_
#define PARFAIT_MODELS_KL_DECODER_KL_DECODER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/config_file.h"
#include "models/run.h"

namespace parfait::models {

struct TileOptions {
  // Latent sides above this are decoded in tiles of so many latent pixels, which overlap by a
  // quarter and are blended.
  std::uint64_t largest = 128, side = 96;
};

class KlDecoder {
 public:
  // Names and shapes only; checkpoint must outlive the decoder.
  static Result<std::unique_ptr<KlDecoder>> find(
      std::shared_ptr<const formats::Checkpoint> checkpoint, const ConfigFile& config,
      std::string_view path);

  std::uint64_t latent_channels() const { return latent_channels_; }
  std::uint64_t stored_bytes() const;  // of what load() reads
  // What decode() holds beside the weights, with each thread's scratch.
  std::uint64_t working_bytes(ImageSize latent, unsigned threads,
                              const TileOptions& tiles = {}) const;
  std::string name() const;
  std::uint64_t factor() const { return std::uint64_t{1} << (stages_.size() - 1); }

  // Activations are BF16 where weights are, else F32; F32 may be asked for.
  void use_activations(DType dtype) { dtype_ = dtype; }
  Result<Done> load(runtime::Ops& ops);
  // latent: F32 [height · width, channels] as the transformer has it. The pixels are F32
  // [factor² · height · width, 3], black at −1, white at 1.
  Result<Buffer> decode(Run& run, const Buffer& latent, ImageSize size,
                        const TileOptions& tiles = {}) const;

 private:
  struct Conv {
    const TensorInfo *weight = nullptr, *bias = nullptr;
    std::uint64_t in = 0, out = 0, kernel = 0;
    std::shared_ptr<const runtime::ConvWeight> packed;
  };
  struct Norm {
    std::vector<float> weight, bias;
  };
  struct Resnet {
    Norm norm1, norm2;
    Conv conv1, conv2;
    std::optional<Conv> shortcut;
  };
  struct Attention {
    Norm norm;
    Conv q, k, v, out;
  };
  struct Stage {
    std::vector<Resnet> resnets;
    std::optional<Conv> upsample;
  };
  class Builder;

  template <class Visit>
  void for_convs(Visit visit);
  std::uint64_t scratch_bytes(const Conv& conv, ImageSize size) const;
  Result<Done> load(runtime::Ops& ops, Conv& conv);
  Result<Buffer> apply(Run& run, const Conv& conv, const Buffer& x, ImageSize size) const;
  Result<Buffer> norm_silu(Run& run, const Norm& norm, const Buffer& x) const;
  Result<Buffer> resnet(Run& run, const Resnet& r, Buffer x, ImageSize size) const;
  Result<Buffer> attention(Run& run, Buffer x, ImageSize size) const;
  Result<Buffer> decode_whole(Run& run, const Buffer& z, ImageSize size) const;
  Result<Buffer> decode_tiles(Run& run, const Buffer& z, ImageSize size, std::uint64_t side) const;
  Buffer denormalised(const Buffer& latent, ImageSize size) const;

  std::shared_ptr<const formats::Checkpoint> checkpoint_;
  DType dtype_ = DType::f32;  // of activations
  std::uint64_t latent_channels_ = 0, groups_ = 32;
  // FLUX.2: by channel c · 4 + (y % 2) · 2 + x % 2. FLUX.1: one value each.
  std::vector<float> scale_, shift_;
  bool packed_statistics_ = false;
  std::optional<Conv> post_quant_;
  Conv conv_in_, conv_out_;
  Resnet mid1_, mid2_;
  Attention mid_attention_;
  std::vector<Stage> stages_;
  Norm norm_out_;
};

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_KL_DECODER_KL_DECODER_H_
