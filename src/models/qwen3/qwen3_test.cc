// The text encoder against transformers' Qwen3 (tests/golden/pipelines/README.md).

#include "models/qwen3/qwen3.h"

#include "models/models_testing.h"

namespace parfait::models::qwen3 {
namespace {

// The tokens of the goldens: all 512, or the real ones.
struct Tokens {
  std::vector<std::int64_t> ids;
  std::vector<std::uint8_t> mask;
};
enum class Padding { kept, cut };

Tokens tokens(const Golden& golden, Padding padding) {
  Tokens t;
  const std::vector<std::int64_t> ids = golden.integers("tokens.ids"),
                                  mask = golden.integers("tokens.mask");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (mask[i] || padding == Padding::kept) {
      t.ids.push_back(ids[i]);
      t.mask.push_back(static_cast<std::uint8_t>(mask[i]));
    }
  return t;
}

void expect_states(const std::string& folder, const std::string& file, Padding padding,
                   std::vector<std::uint64_t> taps, double tolerance) {
  const Golden golden(golden_path("pipelines/" + folder + "/golden.safetensors"));
  const Tokens t = tokens(golden, padding);
  const std::string path = golden_path("pipelines/" + folder + "/" + file);
  for (Isa isa : machine_isas()) {
    Loaded loaded(path, isa);
    auto config = ConfigFile::beside(path);
    ASSERT_TRUE(config.ok()) << config.error().message;
    auto model = Qwen3::find(loaded.checkpoint(), *config, path);
    ASSERT_TRUE(model.ok()) << model.error().message;
    loaded.load((*model)->blocks(taps.back()));
    Buffer states;
    PARFAIT_ASSERT_OK((*model)->encode(*loaded.run, t.ids, t.mask, taps, states));
    const std::size_t values = states.rows() * states.columns();
    EXPECT_LT(worst_difference({states.floats(), values}, golden.values("text_states")), tolerance)
        << isa_name(isa);
  }
}

TEST(Qwen3, hidden_states_of_a_padded_prompt) {
  expect_states("klein", "text_encoder/model.safetensors", Padding::kept, {2, 4, 6}, 2e-6);
}

TEST(Qwen3, hidden_states_of_a_sharded_encoder) {
  expect_states("z_image", "text_encoder", Padding::cut, {3}, 2e-6);
}

// The same weights in bf16 are computed with bf16 activations.
TEST(Qwen3, hidden_states_from_bf16_weights) {
  expect_states("klein", "comfy/text_encoder.safetensors", Padding::kept, {2, 4, 6}, 4e-2);
  expect_states("z_image", "comfy/text_encoder.safetensors", Padding::cut, {3}, 4e-2);
}

TEST(Qwen3, a_layer_that_the_file_lacks) {
  const std::string path = golden_path("pipelines/z_image/comfy/text_encoder.safetensors");
  Loaded loaded(path);
  auto model = Qwen3::find(loaded.checkpoint(), {}, path);
  ASSERT_TRUE(model.ok()) << model.error().message;
  loaded.load((*model)->blocks(9));
  Buffer states;
  const std::vector<std::int64_t> ids = {1, 2};
  const std::vector<std::uint8_t> mask = {1, 1};
  const std::vector<std::uint64_t> taps = {9};
  const auto done = (*model)->encode(*loaded.run, ids, mask, taps, states);
  ASSERT_FALSE(done.ok());
  EXPECT_NE(done.error().message.find("has 4 layers"), std::string::npos) << done.error().message;
}

}  // namespace
}  // namespace parfait::models::qwen3
