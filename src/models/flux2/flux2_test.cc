// The graph of FLUX.2 against a reference in float64 (tests/golden/README.md).

#include <algorithm>
#include <random>

#include "models/flux2/graph.h"
#include "models/models_testing.h"

namespace parfait::models::flux2 {
namespace {

const std::string file = golden_path("models/klein_tiny.safetensors");

std::vector<Position> positions(const Golden& golden, const std::string& name) {
  const std::vector<double> all = golden.values(name);
  std::vector<Position> out(all.size() / 4);
  for (std::size_t i = 0; i < all.size(); ++i) out[i / 4][i % 4] = all[i];
  return out;
}

std::vector<float> velocity(Loaded& loaded, Flux2& model, const Golden& io, float sigma) {
  auto prepared = model.prepare_at(*loaded.run, io.matrix("context"), positions(io, "text_ids"),
                                   positions(io, "image_ids"));
  if (!prepared.ok()) throw std::runtime_error(prepared.error().message);
  const Buffer x = io.matrix("x");
  Buffer y(x.rows(), x.columns(), DType::f32);
  const auto done = model.velocity(*loaded.run, **prepared, sigma, 1, x, y);
  if (!done.ok()) throw std::runtime_error(done.error().message);
  return {y.floats(), y.floats() + y.rows() * y.columns()};
}

TEST(Flux2, golden_velocities_on_every_instruction_set) {
  const Golden io(golden_path("models/klein_tiny_io.safetensors"));
  for (Isa isa : machine_isas()) {
    Loaded loaded(file, isa);
    auto found = find(loaded.checkpoint(), *recognise(loaded.checkpoint()));
    ASSERT_TRUE(found.ok()) << found.error().message;
    Flux2 model(*std::move(found));
    loaded.load(model.blocks());
    for (const auto& [sigma, name] : {std::pair(1.0f, "1.0"), {0.73f, "0.73"}, {0.05f, "0.05"}}) {
      const std::vector<float> y = velocity(loaded, model, io, sigma);
      EXPECT_LT(worst_difference(y, io.values(std::string("velocity_at_") + name)), 2e-5)
          << isa_name(isa) << " at " << name;
    }
  }
}

TEST(Flux2, streamed_weights_give_the_same_bits) {
  const std::string many_blocks =
      golden_path("pipelines/klein/transformer/diffusion_pytorch_model.safetensors");
  const ImageSize size{8, 12};
  std::vector<float> resident;
  std::uint64_t total = 0, least = 0;
  for (int part = 0; part < 6; ++part) {
    Loaded loaded(many_blocks, {}, 2, {.io = Io::pread});
    Flux2 model(*find(loaded.checkpoint(), ""));
    if (part == 0) {
      least = least_bytes(loaded.plan, model.blocks(), {});
      total = decide_residency(loaded.plan, model.blocks(), {})->total_bytes;
      ASSERT_LT(least, total);
      const auto too_little =
          decide_residency(loaded.plan, model.blocks(), {.max_bytes = least - 1});
      ASSERT_FALSE(too_little.ok());
      EXPECT_NE(too_little.error().message.find("1 B more"), std::string::npos)
          << too_little.error().message;
    }
    // From all that there is to one block at a time, modulations among them.
    const std::uint64_t bytes = part == 0 ? total : least + (total - least) * (part - 1) / 5;
    loaded.load(model.blocks(), bytes);
    const Residency& residency = loaded.weights->residency();
    EXPECT_EQ(residency.all(), part == 0);
    EXPECT_LE(residency.peak_bytes, bytes);
    if (part == 1) {
      EXPECT_EQ(std::ranges::count(residency.pinned, true), 1);
      EXPECT_LT(std::ranges::count(residency.ahead, true),
                static_cast<std::ptrdiff_t>(residency.ahead.size()));
    }
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::uint64_t rows, std::uint64_t columns) {
      Buffer out(rows, columns, DType::f32);
      std::generate_n(out.floats(), rows * columns, [&] { return normal(random); });
      return out;
    };
    const Buffer text = fill(9, model.config().text_width);
    const Buffer x = fill(24, model.config().in_channels);
    auto prepared = model.prepare(*loaded.run, text, size);
    ASSERT_TRUE(prepared.ok()) << prepared.error().message;
    for (int pass = 0; pass < 3; ++pass) {
      Buffer y(x.rows(), x.columns(), DType::f32);
      PARFAIT_ASSERT_OK(model.velocity(*loaded.run, **prepared, 0.73f, 1, x, y));
      const std::vector<float> got(y.floats(), y.floats() + y.rows() * y.columns());
      if (resident.empty()) resident = got;
      EXPECT_EQ(got, resident);
    }
  }
}

TEST(Flux2, sigmas_of_the_published_schedule) {
  Loaded loaded(file);
  const Flux2 model(*find(loaded.checkpoint(), ""));
  const auto expect = [&](std::uint64_t side, std::vector<double> want) {
    const std::vector<float> got = model.sigmas(4, {2 * side, 2 * side});
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(static_cast<double>(got[i]), want[i], 1e-6);
  };
  expect(16, {1, .955391, .877134, .704112, 0});
  expect(32, {1, .958085, .883982, .717497, 0});
  expect(64, {1, .967384, .908144, .767200, 0});
}

}  // namespace
}  // namespace parfait::models::flux2
