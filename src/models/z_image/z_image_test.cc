// The graph of Z-Image against a reference in float64 (tests/golden/README.md).

#include "models/models_testing.h"
#include "models/z_image/graph.h"

namespace parfait::models::z_image {
namespace {

TEST(ZImage, golden_outputs_on_every_instruction_set) {
  const Golden io(golden_path("models/z_image_tiny_io.safetensors"));
  const ImageSize size{io.side("latent", 1), io.side("latent", 2)};
  for (Isa isa : machine_isas()) {
    Loaded loaded(golden_path("models/z_image_tiny.safetensors"), isa);
    auto found = find(loaded.checkpoint(), *recognise(loaded.checkpoint()));
    ASSERT_TRUE(found.ok()) << found.error().message;
    ZImage model(*std::move(found));
    loaded.load(model.blocks());
    auto prepared = model.prepare(*loaded.run, io.matrix("caption"), size);
    ASSERT_TRUE(prepared.ok()) << prepared.error().message;
    const Buffer x = model.rows_from_noise(io.floats("latent"), size);
    for (const auto& [time, name] : {std::pair(0.0f, "0.0"), {0.27f, "0.27"}, {0.9f, "0.9"}}) {
      Buffer y(x.rows(), x.columns(), DType::f32);
      PARFAIT_ASSERT_OK(model.velocity(*loaded.run, **prepared, 1.0f - time, 0, x, y));
      // The golden is the raw output, [C, H, W]: its rows, negated, are the velocity.
      std::vector<double> expected;
      const Buffer raw = model.rows_from_noise(io.floats(std::string("output_at_") + name), size);
      for (std::uint64_t i = 0; i < raw.rows() * raw.columns(); ++i)
        expected.push_back(-static_cast<double>(raw.floats()[i]));
      EXPECT_LT(worst_difference({y.floats(), expected.size()}, expected), 2e-5)
          << isa_name(isa) << " at " << name;
    }
  }
}

// Twice prepared, as for a prompt and a negative one: what was read ahead for the pass then is of
// no use, and the context refiner's blocks are read again.
TEST(ZImage, streamed_weights_give_the_same_bits) {
  const Golden io(golden_path("models/z_image_tiny_io.safetensors"));
  const ImageSize size{io.side("latent", 1), io.side("latent", 2)};
  std::vector<float> resident;
  std::uint64_t total = 0, least = 0;
  for (int part = 0; part < 5; ++part) {
    Loaded loaded(golden_path("models/z_image_tiny.safetensors"), {}, 2, {.io = Io::pread});
    ZImage model(*find(loaded.checkpoint(), *recognise(loaded.checkpoint())));
    if (part == 0) {
      least = least_bytes(loaded.plan, model.blocks(), {});
      total = decide_residency(loaded.plan, model.blocks(), {})->total_bytes;
      ASSERT_LT(least, total);
      EXPECT_FALSE(decide_residency(loaded.plan, model.blocks(), {.max_bytes = least - 1}).ok());
    }
    const std::uint64_t bytes = part == 0 ? total : least + (total - least) * (part - 1) / 4;
    loaded.load(model.blocks(), bytes);
    EXPECT_EQ(loaded.weights->residency().all(), part == 0);
    EXPECT_LE(loaded.weights->residency().peak_bytes, bytes);
    std::unique_ptr<Conditioning> conditionings[2];
    for (auto& one : conditionings) {
      auto prepared = model.prepare(*loaded.run, io.matrix("caption"), size);
      ASSERT_TRUE(prepared.ok()) << prepared.error().message;
      one = *std::move(prepared);
    }
    loaded.weights->drop_scratch();
    const Buffer x = model.rows_from_noise(io.floats("latent"), size);
    for (const auto& one : conditionings) {
      Buffer y(x.rows(), x.columns(), DType::f32);
      PARFAIT_ASSERT_OK(model.velocity(*loaded.run, *one, 0.73f, 0, x, y));
      const std::vector<float> got(y.floats(), y.floats() + y.rows() * y.columns());
      if (resident.empty()) resident = got;
      EXPECT_EQ(got, resident) << part;
    }
  }
}

}  // namespace
}  // namespace parfait::models::z_image
