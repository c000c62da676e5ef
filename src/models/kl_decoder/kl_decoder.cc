#include "models/kl_decoder/kl_decoder.h"

#include <algorithm>
#include <cstring>

#include "base/floats.h"
#include "base/result.h"

namespace parfait::models {
namespace {

constexpr float epsilon = 1e-6f;

}  // namespace

template <class Visit>
void KlDecoder::for_convs(Visit visit) {
  const auto resnet = [&](Resnet& r) {
    visit(r.conv1);
    visit(r.conv2);
    if (r.shortcut) visit(*r.shortcut);
  };
  if (post_quant_) visit(*post_quant_);
  visit(conv_in_);
  resnet(mid1_);
  for (Conv* c : {&mid_attention_.q, &mid_attention_.k, &mid_attention_.v, &mid_attention_.out})
    visit(*c);
  resnet(mid2_);
  for (Stage& stage : stages_) {
    for (Resnet& r : stage.resnets) resnet(r);
    if (stage.upsample) visit(*stage.upsample);
  }
  visit(conv_out_);
}

std::uint64_t KlDecoder::stored_bytes() const {
  std::uint64_t bytes = 0;
  const_cast<KlDecoder*>(this)->for_convs(
      [&](const Conv& c) { bytes += c.weight->bytes + c.bias->bytes; });
  return bytes;
}

std::string KlDecoder::name() const {
  return fmt::format("{} auto-encoder, {} latent channels",
                     packed_statistics_ ? "FLUX.2" : "FLUX.1", latent_channels_);
}

// A strip of a convolution: input, output, and the weight in the library's layout.
std::uint64_t KlDecoder::scratch_bytes(const Conv& conv, ImageSize size) const {
  const std::uint64_t pixels =
      std::min(std::max(runtime::conv_strip_pixels, size.width), size.height * size.width);
  return 4 * ((pixels + conv.kernel / 2 * 2 * size.width) * conv.in + pixels * conv.out) +
         2 * 4 * conv.in * conv.out * conv.kernel * conv.kernel;
}

// The widest point is a residual block: at its first convolution, its input, its normalised input
// and the output; later its input and two outputs.
std::uint64_t KlDecoder::working_bytes(ImageSize latent, unsigned threads,
                                       const TileOptions& tiles) const {
  std::uint64_t of_tiles = 0;
  if (std::max(latent.height, latent.width) > tiles.largest) {
    of_tiles = 4 * 4 * latent.height * latent.width * factor() * factor();  // sums, weights
    latent = {std::min(latent.height, tiles.side), std::min(latent.width, tiles.side)};
  }
  std::uint64_t most = 0, scratch = scratch_bytes(conv_in_, latent);
  std::uint64_t pixels = latent.height * latent.width;
  const auto resnet = [&](const Resnet& r) {
    const std::uint64_t in = r.conv1.in, out = r.conv1.out;
    most = std::max(most, pixels * std::max(2 * in + out, in + 2 * out));
    scratch = std::max({scratch, scratch_bytes(r.conv1, latent), scratch_bytes(r.conv2, latent)});
  };
  resnet(mid1_);
  resnet(mid2_);
  most = std::max(most, pixels * 5 * mid1_.conv1.out);  // attention: x, normed, q, k, v
  for (const Stage& stage : stages_) {
    for (const Resnet& r : stage.resnets) resnet(r);
    if (stage.upsample) {
      pixels *= 4;
      latent = {2 * latent.height, 2 * latent.width};
      most = std::max(most, pixels * (stage.upsample->in + stage.upsample->out));
      scratch = std::max(scratch, scratch_bytes(*stage.upsample, latent));
    }
  }
  return of_tiles + most * (dtype_bits(dtype_) / 8) + pixels * 3 * 4 + threads * scratch;
}

Result<Done> KlDecoder::load(runtime::Ops& ops) {
  Result<Done> done = Done{};
  for_convs([&](Conv& conv) {
    if (done.ok()) done = load(ops, conv);
  });
  return done;
}

Result<Done> KlDecoder::load(runtime::Ops& ops, Conv& conv) {
  std::vector<std::byte> scratch, bias_scratch;
  PARFAIT_TRY(const ByteSpan bias_bytes, checkpoint_->index->read(*conv.bias, bias_scratch));
  std::vector<float> bias(conv.out);
  for (std::uint64_t i = 0; i < conv.out; ++i)
    bias[i] = load_float(conv.bias->dtype, bias_bytes.data(), i);
  PARFAIT_TRY(const ByteSpan bytes, checkpoint_->index->read(*conv.weight, scratch));
  const std::uint64_t columns = conv.in * conv.kernel * conv.kernel;
  ConvOptions options;
  options.kernel_height = options.kernel_width = conv.kernel;
  options.pad_top = options.pad_left = options.pad_bottom = options.pad_right = conv.kernel / 2;
  PARFAIT_TRY(conv.packed, runtime::pack_conv(
                               ops, {bytes.data(), conv.weight->dtype, conv.out, columns, columns},
                               conv.in, options, bias));
  checkpoint_->index->drop(*conv.weight);
  return Done{};
}

Result<Buffer> KlDecoder::apply(Run& run, const Conv& conv, const Buffer& x, ImageSize size) const {
  Buffer y(x.rows(), conv.out, dtype_);
  PARFAIT_CHECK_OK(run.conv2d(x, size, *conv.packed, y));
  return y;
}

Result<Buffer> KlDecoder::norm_silu(Run& run, const Norm& norm, const Buffer& x) const {
  Buffer y(x.rows(), x.columns(), dtype_);
  PARFAIT_CHECK_OK(run.group_norm(x,
                                  {.groups = groups_,
                                   .epsilon = epsilon,
                                   .weight = norm.weight,
                                   .bias = norm.bias,
                                   .silu = true},
                                  y));
  return y;
}

Result<Buffer> KlDecoder::resnet(Run& run, const Resnet& r, Buffer x, ImageSize size) const {
  Buffer h;
  {
    PARFAIT_TRY(const Buffer normed, norm_silu(run, r.norm1, x));
    PARFAIT_TRY(h, apply(run, r.conv1, normed, size));
  }
  PARFAIT_TRY(h, norm_silu(run, r.norm2, h));
  PARFAIT_TRY(h, apply(run, r.conv2, h, size));
  if (r.shortcut) {
    PARFAIT_TRY(x, apply(run, *r.shortcut, x, size));
  }
  PARFAIT_CHECK_OK(run.add_gated(x, {}, h, x));
  return x;
}

// One head over all pixels.
Result<Buffer> KlDecoder::attention(Run& run, Buffer x, ImageSize size) const {
  const Attention& a = mid_attention_;
  Buffer normed(x.rows(), x.columns(), dtype_);
  PARFAIT_CHECK_OK(run.group_norm(
      x, {.groups = groups_, .epsilon = epsilon, .weight = a.norm.weight, .bias = a.norm.bias},
      normed));
  PARFAIT_TRY(const Buffer q, apply(run, a.q, normed, size));
  PARFAIT_TRY(const Buffer k, apply(run, a.k, normed, size));
  PARFAIT_TRY(const Buffer v, apply(run, a.v, normed, size));
  PARFAIT_CHECK_OK(run.attention(q, k, v, {.heads = 1}, normed));
  PARFAIT_TRY(const Buffer out, apply(run, a.out, normed, size));
  PARFAIT_CHECK_OK(run.add_gated(x, {}, out, x));
  return x;
}

Buffer KlDecoder::denormalised(const Buffer& latent, ImageSize size) const {
  const std::uint64_t C = latent_channels_;
  Buffer z(latent.rows(), C, DType::f32);
  for (std::uint64_t row = 0; row < latent.rows(); ++row) {
    const std::uint64_t y = row / size.width, x = row % size.width;
    for (std::uint64_t c = 0; c < C; ++c) {
      const std::uint64_t i = packed_statistics_ ? c * 4 + y % 2 * 2 + x % 2 : 0;
      z.floats()[row * C + c] = latent.floats()[row * C + c] * scale_[i] + shift_[i];
    }
  }
  return z;
}

Result<Buffer> KlDecoder::decode_whole(Run& run, const Buffer& z, ImageSize size) const {
  Buffer x;
  if (post_quant_) {
    PARFAIT_TRY(x, apply(run, *post_quant_, z, size));
    PARFAIT_TRY(x, apply(run, conv_in_, x, size));
  } else {
    PARFAIT_TRY(x, apply(run, conv_in_, z, size));
  }
  PARFAIT_TRY(x, resnet(run, mid1_, std::move(x), size));
  PARFAIT_TRY(x, attention(run, std::move(x), size));
  PARFAIT_TRY(x, resnet(run, mid2_, std::move(x), size));
  for (const Stage& stage : stages_) {
    for (const Resnet& r : stage.resnets) {
      PARFAIT_CHECK_OK(run.check_stop());
      PARFAIT_TRY(x, resnet(run, r, std::move(x), size));
    }
    if (!stage.upsample) continue;
    const ImageSize larger{2 * size.height, 2 * size.width};
    Buffer up(x.rows() * 4, x.columns(), dtype_);
    PARFAIT_CHECK_OK(run.upsample_nearest(x, size, 2, up));
    x = {};
    size = larger;
    PARFAIT_TRY(x, apply(run, *stage.upsample, up, size));
  }
  PARFAIT_TRY(x, norm_silu(run, norm_out_, x));
  Buffer pixels(x.rows(), conv_out_.out, DType::f32);
  PARFAIT_CHECK_OK(run.conv2d(x, size, *conv_out_.packed, pixels));
  return pixels;
}

// Tiles start every three quarters of a side, the last ones at the edge. A pixel is the mean of the
// tiles that have it, each weighted by its distance from the tile's border, so that no seam shows.
Result<Buffer> KlDecoder::decode_tiles(Run& run, const Buffer& z, ImageSize size,
                                       std::uint64_t side) const {
  const std::uint64_t f = factor(), C = latent_channels_, step = side - side / 4;
  const auto starts = [&](std::uint64_t length) {
    std::vector<std::uint64_t> all = {0};
    while (all.back() + side < length) all.push_back(std::min(all.back() + step, length - side));
    return all;
  };
  const std::uint64_t height = std::min(side, size.height), width = std::min(side, size.width);
  Buffer sums(size.height * f * size.width * f, 3, DType::f32);
  std::vector<float> weights(size.height * f * size.width * f);
  const auto weight = [&](std::uint64_t i, std::uint64_t length) {
    return static_cast<float>(std::min({i + 1, length - i, side / 4 * f}));
  };
  for (std::uint64_t top : starts(size.height))
    for (std::uint64_t left : starts(size.width)) {
      Buffer part(height * width, C, DType::f32);
      for (std::uint64_t y = 0; y < height; ++y)
        std::copy_n(z.floats() + ((top + y) * size.width + left) * C, width * C,
                    part.floats() + y * width * C);
      PARFAIT_TRY(const Buffer tile, decode_whole(run, part, {height, width}));
      for (std::uint64_t y = 0; y < height * f; ++y)
        for (std::uint64_t x = 0; x < width * f; ++x) {
          const float w = weight(y, height * f) * weight(x, width * f);
          const std::uint64_t at = (top * f + y) * size.width * f + left * f + x;
          weights[at] += w;
          for (std::uint64_t c = 0; c < 3; ++c)
            sums.floats()[at * 3 + c] += w * tile.floats()[(y * width * f + x) * 3 + c];
        }
    }
  for (std::uint64_t i = 0; i < sums.rows() * 3; ++i) sums.floats()[i] /= weights[i / 3];
  return sums;
}

Result<Buffer> KlDecoder::decode(Run& run, const Buffer& latent, ImageSize size,
                                 const TileOptions& tiles) const {
  const Buffer z = denormalised(latent, size);
  if (std::max(size.height, size.width) <= tiles.largest) return decode_whole(run, z, size);
  return decode_tiles(run, z, size, tiles.side);
}

}  // namespace parfait::models
