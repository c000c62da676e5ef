// Which tensors an auto-encoder's decoder is made of, in BFL's names or diffusers'.

#include <cmath>

#include "base/result.h"
#include "models/kl_decoder/kl_decoder.h"

namespace parfait::models {
namespace {

constexpr std::uint64_t most_stages = 8, most_resnets = 16;

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

}  // namespace

class KlDecoder::Builder {
 public:
  Builder(KlDecoder& decoder, const formats::Checkpoint& checkpoint, std::string prefix)
      : decoder_(decoder), finder_(checkpoint, "an image auto-encoder", std::move(prefix)) {}

  Result<Done> build() {
    bfl_ = finder_.tensor("decoder.mid.block_1.conv1.weight") != nullptr;
    PARFAIT_TRY(decoder_.conv_in_, conv("decoder.conv_in", 3));
    decoder_.latent_channels_ = decoder_.conv_in_.in;
    decoder_.dtype_ = decoder_.conv_in_.weight->dtype == DType::bf16 ? DType::bf16 : DType::f32;
    for (const char* name : {"post_quant_conv", "decoder.post_quant_conv"})
      if (finder_.tensor(std::string(name) + ".weight")) {
        PARFAIT_TRY(decoder_.post_quant_, conv(name, 1));
        if (decoder_.post_quant_->in != decoder_.latent_channels_ ||
            decoder_.post_quant_->out != decoder_.latent_channels_)
          return wrong(*decoder_.post_quant_, decoder_.latent_channels_);
      }
    std::uint64_t channels = decoder_.conv_in_.out;
    const std::string mid = bfl_ ? "decoder.mid." : "decoder.mid_block.";
    PARFAIT_TRY(decoder_.mid1_, resnet(mid + (bfl_ ? "block_1" : "resnets.0"), channels));
    PARFAIT_CHECK_OK(attention(mid + (bfl_ ? "attn_1." : "attentions.0."), channels));
    PARFAIT_TRY(decoder_.mid2_, resnet(mid + (bfl_ ? "block_2" : "resnets.1"), channels));
    std::uint64_t stages = 0;
    while (stages < most_stages && has_stage(stages)) ++stages;
    if (stages == 0)
      return make_error(ErrorCode::model_tensor, "{} is missing, which an image auto-encoder needs",
                        bfl_ ? "decoder.up.0.block.0" : "decoder.up_blocks.0.resnets.0");
    for (std::uint64_t i = 0; i < stages; ++i) {
      const std::string name = bfl_ ? fmt::format("decoder.up.{}.", stages - 1 - i)
                                    : fmt::format("decoder.up_blocks.{}.", i);
      Stage& stage = decoder_.stages_.emplace_back();
      for (std::uint64_t m = 0; m < most_resnets; ++m) {
        const std::string one = fmt::format("{}{}.{}", name, bfl_ ? "block" : "resnets", m);
        if (!finder_.tensor(one + ".conv1.weight")) break;
        PARFAIT_TRY(Resnet r, resnet(one, channels));
        channels = r.conv2.out;
        stage.resnets.push_back(std::move(r));
      }
      const std::string up = name + (bfl_ ? "upsample.conv" : "upsamplers.0.conv");
      if (i + 1 < stages) {
        PARFAIT_TRY(stage.upsample, conv(up, 3));
        if (stage.upsample->in != channels || stage.upsample->out != channels)
          return wrong(*stage.upsample, channels);
      }
    }
    PARFAIT_TRY(decoder_.norm_out_,
                norm(bfl_ ? "decoder.norm_out" : "decoder.conv_norm_out", channels));
    PARFAIT_TRY(decoder_.conv_out_, conv("decoder.conv_out", 3));
    if (decoder_.conv_out_.in != channels || decoder_.conv_out_.out != 3)
      return make_error(ErrorCode::model_tensor, "{} is {}, expected {} channels in and 3 out",
                        printable(decoder_.conv_out_.weight->name),
                        shape_of(*decoder_.conv_out_.weight), channels);
    return Done{};
  }

  // FLUX.2 keeps the statistics of its packed latents; FLUX.1 has two numbers.
  Result<Done> statistics(const ConfigFile& config) {
    KlDecoder& d = decoder_;
    if (finder_.tensor("bn.running_mean")) {
      PARFAIT_TRY(d.shift_, finder_.vector({"bn.running_mean"}, 4 * d.latent_channels_));
      PARFAIT_TRY(d.scale_, finder_.vector({"bn.running_var"}, 4 * d.latent_channels_));
      PARFAIT_TRY(const double epsilon, config.number("batch_norm_eps", 0, 1, 1e-4));
      for (float& v : d.scale_) v = std::sqrt(v + static_cast<float>(epsilon));
      d.packed_statistics_ = true;
      return Done{};
    }
    PARFAIT_TRY(const double scale, config.number("scaling_factor", 1e-6, 1e6, 0.3611));
    PARFAIT_TRY(const double shift, config.number("shift_factor", -1e6, 1e6, 0.1159));
    d.scale_ = {static_cast<float>(1 / scale)};
    d.shift_ = {static_cast<float>(shift)};
    return Done{};
  }

 private:
  static std::string shape_of(const TensorInfo& tensor) {
    std::string text;
    for (std::uint64_t side : tensor.shape)
      text += fmt::format("{}{}", text.empty() ? "" : ", ", side);
    return "[" + text + "]";
  }
  static Error wrong(const Conv& conv, std::uint64_t channels) {
    return make_error(ErrorCode::model_tensor, "{} is {}, where this auto-encoder has {} channels",
                      printable(conv.weight->name), shape_of(*conv.weight), channels);
  }

  bool has_stage(std::uint64_t i) const {
    return finder_.tensor(bfl_ ? fmt::format("decoder.up.{}.block.0.conv1.weight", i)
                               : fmt::format("decoder.up_blocks.{}.resnets.0.conv1.weight", i));
  }

  // A convolution with a square kernel, or for kernel 1 a matrix too.
  Result<Conv> conv(const std::string& name, std::uint64_t kernel) const {
    Conv c;
    PARFAIT_TRY(c.weight, finder_.any_tensor({name + ".weight"}));
    PARFAIT_TRY(c.bias, finder_.any_tensor({name + ".bias"}));
    const auto shape = c.weight->shape;
    const bool fits = (shape.size() == 4 && shape[2] == kernel && shape[3] == kernel) ||
                      (kernel == 1 && shape.size() == 2);
    if (!fits || shape[0] == 0 || shape[1] == 0 || !is_float(c.weight->dtype))
      return make_error(ErrorCode::model_tensor,
                        "{} is {} {}, expected F32, F16 or BF16 [out, in, {}, {}]",
                        printable(c.weight->name), dtype_name(c.weight->dtype), shape_of(*c.weight),
                        kernel, kernel);
    c.out = shape[0];
    c.in = shape[1];
    c.kernel = kernel;
    if (!is_float(c.bias->dtype) || c.bias->shape.size() != 1 || c.bias->shape[0] != c.out)
      return make_error(ErrorCode::model_tensor, "{} is {} {}, expected {} floats",
                        printable(c.bias->name), dtype_name(c.bias->dtype), shape_of(*c.bias),
                        c.out);
    return c;
  }

  Result<Norm> norm(const std::string& name, std::uint64_t channels) const {
    if (channels % decoder_.groups_ != 0)
      return make_error(ErrorCode::model_tensor, "{} has {} channels, which are not {} groups",
                        printable(name), channels, decoder_.groups_);
    Norm n;
    PARFAIT_TRY(n.weight, finder_.vector({name + ".weight"}, channels));
    PARFAIT_TRY(n.bias, finder_.vector({name + ".bias"}, channels));
    return n;
  }

  Result<Resnet> resnet(const std::string& name, std::uint64_t channels) const {
    Resnet r;
    PARFAIT_TRY(r.norm1, norm(name + ".norm1", channels));
    PARFAIT_TRY(r.conv1, conv(name + ".conv1", 3));
    if (r.conv1.in != channels) return wrong(r.conv1, channels);
    PARFAIT_TRY(r.norm2, norm(name + ".norm2", r.conv1.out));
    PARFAIT_TRY(r.conv2, conv(name + ".conv2", 3));
    if (r.conv2.in != r.conv1.out || r.conv2.out != r.conv1.out) return wrong(r.conv2, r.conv1.out);
    if (r.conv1.out != channels) {
      PARFAIT_TRY(r.shortcut, conv(name + (bfl_ ? ".nin_shortcut" : ".conv_shortcut"), 1));
      if (r.shortcut->in != channels || r.shortcut->out != r.conv1.out)
        return wrong(*r.shortcut, r.conv1.out);
    }
    return r;
  }

  Result<Done> attention(const std::string& name, std::uint64_t channels) {
    Attention& a = decoder_.mid_attention_;
    PARFAIT_TRY(a.norm, norm(name + (bfl_ ? "norm" : "group_norm"), channels));
    PARFAIT_TRY(a.q, conv(name + (bfl_ ? "q" : "to_q"), 1));
    PARFAIT_TRY(a.k, conv(name + (bfl_ ? "k" : "to_k"), 1));
    PARFAIT_TRY(a.v, conv(name + (bfl_ ? "v" : "to_v"), 1));
    PARFAIT_TRY(a.out, conv(name + (bfl_ ? "proj_out" : "to_out.0"), 1));
    for (const Conv* c : {&a.q, &a.k, &a.v, &a.out})
      if (c->in != channels || c->out != channels) return wrong(*c, channels);
    return Done{};
  }

  KlDecoder& decoder_;
  Finder finder_;
  bool bfl_ = true;
};

Result<std::unique_ptr<KlDecoder>> KlDecoder::find(
    std::shared_ptr<const formats::Checkpoint> checkpoint, const ConfigFile& config,
    std::string_view path) {
  auto decoder = std::unique_ptr<KlDecoder>(new KlDecoder);
  decoder->checkpoint_ = checkpoint;
  for (const char* prefix : {"", "first_stage_model.", "vae."}) {
    if (!checkpoint->index->find(std::string(prefix) + "decoder.conv_in.weight")) continue;
    Builder builder(*decoder, *checkpoint, prefix);
    PARFAIT_CHECK_OK(builder.build());
    PARFAIT_CHECK_OK(builder.statistics(config));
    return decoder;
  }
  return make_error(ErrorCode::model_unknown,
                    "{}: this is no image auto-encoder that can be run: FLUX.1's and FLUX.2's "
                    "(decoder.conv_in and its like) are",
                    printable(path, 1000));
}

}  // namespace parfait::models
