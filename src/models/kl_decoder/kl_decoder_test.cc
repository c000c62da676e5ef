// The image decoders against diffusers' (tests/golden/pipelines/README.md).

#include "models/kl_decoder/kl_decoder.h"

#include "models/models_testing.h"

namespace parfait::models {
namespace {

// "noise-like" channels-first values as the rows of an image, channels last.
Buffer channels_last(const std::vector<float>& values, std::uint64_t channels, ImageSize size) {
  Buffer out(size.height * size.width, channels, DType::f32);
  for (std::uint64_t c = 0; c < channels; ++c)
    for (std::uint64_t i = 0; i < out.rows(); ++i)
      out.floats()[i * channels + c] = values[c * out.rows() + i];
  return out;
}

struct Decoded {
  std::vector<float> pixels;  // [3, H, W], 0 to 1
  std::string error;
};

// The latents of the golden's last step, decoded.
Decoded decode(const std::string& folder, const std::string& file, std::optional<Isa> isa,
               DType activations, const TileOptions& tiles = {}) {
  const Golden golden(golden_path("pipelines/" + folder + "/golden.safetensors"));
  const std::string path = golden_path("pipelines/" + folder + "/" + file);
  Loaded loaded(path, isa);
  auto config = ConfigFile::beside(path);
  auto decoder = KlDecoder::find(loaded.plan.state()->checked.checkpoint().state(), *config, path);
  if (!decoder.ok()) return {{}, decoder.error().message};
  const ImageSize pixels{golden.side("pixels", 1), golden.side("pixels", 2)};
  const ImageSize size{pixels.height / 8, pixels.width / 8};
  Buffer latent;
  const std::string last = "step.3.latents";
  if (folder == "klein") {  // rows of packed latents
    const Buffer rows = golden.matrix(last);
    const std::uint64_t channels = rows.columns() / 4, width = size.width / 2;
    latent = Buffer(size.height * size.width, channels, DType::f32);
    for (std::uint64_t row = 0; row < rows.rows(); ++row)
      for (std::uint64_t i = 0; i < rows.columns(); ++i)
        latent.floats()[((row / width * 2 + i % 4 / 2) * size.width + row % width * 2 + i % 2) *
                            channels +
                        i / 4] = rows.floats()[row * rows.columns() + i];
  } else {
    latent = channels_last(golden.floats(last), 16, size);
  }
  (*decoder)->use_activations(activations);
  const auto loading = (*decoder)->load(loaded.ops);
  if (!loading.ok()) return {{}, loading.error().message};
  Run run(loaded.ops, nullptr, nullptr);
  auto image = (*decoder)->decode(run, latent, size, tiles);
  if (!image.ok()) return {{}, image.error().message};
  Decoded out;
  for (std::uint64_t c = 0; c < 3; ++c)
    for (std::uint64_t i = 0; i < image->rows(); ++i)
      out.pixels.push_back(std::clamp(image->floats()[i * 3 + c] / 2 + 0.5f, 0.0f, 1.0f));
  return out;
}

void expect_pixels(const std::string& folder, const std::string& file, DType activations,
                   double tolerance, std::optional<Isa> isa = {}) {
  const Golden golden(golden_path("pipelines/" + folder + "/golden.safetensors"));
  const Decoded got = decode(folder, file, isa, activations);
  ASSERT_EQ(got.error, "");
  EXPECT_LT(worst_difference(got.pixels, golden.values("pixels")), tolerance);
}

const std::string diffusers = "vae/diffusion_pytorch_model.safetensors",
                  bfl = "comfy/vae.safetensors";

TEST(KlDecoder, flux2_under_both_names) {
  expect_pixels("klein", diffusers, DType::f32, 5e-6);
  expect_pixels("klein", bfl, DType::f32, 5e-6);
}

TEST(KlDecoder, flux1_under_both_names) {
  expect_pixels("z_image", diffusers, DType::f32, 5e-6);
  expect_pixels("z_image", bfl, DType::f32, 5e-6);
}

TEST(KlDecoder, plain_loops) { expect_pixels("klein", bfl, DType::f32, 5e-6, Isa::reference); }

// Random weights amplify the rounding of activations more than a trained decoder does.
TEST(KlDecoder, bf16_activations) {
  expect_pixels("klein", diffusers, DType::bf16, 0.06);
  expect_pixels("z_image", bfl, DType::bf16, 0.06);
}

// Statistics of a tile are not those of the image, so tiles differ; random weights have no seams to
// see, but every pixel must be there.
TEST(KlDecoder, tiles_cover_the_image) {
  const Decoded whole = decode("klein", bfl, {}, DType::f32);
  const Decoded one = decode("klein", bfl, {}, DType::f32, {.largest = 4, .side = 12});
  const Decoded tiles = decode("klein", bfl, {}, DType::f32, {.largest = 4, .side = 6});
  ASSERT_EQ(tiles.error, "");
  ASSERT_EQ(tiles.pixels.size(), whole.pixels.size());
  double difference = 0, from_one = 0;
  for (std::size_t i = 0; i < whole.pixels.size(); ++i) {
    difference += std::abs(static_cast<double>(tiles.pixels[i] - whole.pixels[i]));
    from_one = std::max(from_one, std::abs(static_cast<double>(one.pixels[i] - whole.pixels[i])));
  }
  EXPECT_LT(from_one, 1e-5);  // a tile as large as the image
  EXPECT_LT(difference / static_cast<double>(whole.pixels.size()), 0.2);
}

TEST(KlDecoder, another_file_is_refused) {
  const Decoded got = decode("klein", "comfy/text_encoder.safetensors", {}, DType::f32);
  EXPECT_NE(got.error.find("this is no image auto-encoder"), std::string::npos) << got.error;
}

}  // namespace
}  // namespace parfait::models
