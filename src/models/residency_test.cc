// Which weights stay and which are streamed, on blocks made of a small file's layers.

#include "models/residency.h"

#include <algorithm>

#include "models/models_testing.h"
#include "runtime/model.h"

namespace parfait::models {
namespace {

const std::string file =
    golden_path("pipelines/klein/transformer/diffusion_pytorch_model.safetensors");

// F32 layers, which are kept as they are read: reading needs nothing beside them.
constexpr std::uint64_t small = 32 * 32 * 4, large = 192 * 32 * 4;

struct Blocks {
  Plan plan = *plan_file(file, {.io = Io::pread}, {});
  std::vector<Block> blocks;

  void add(std::vector<std::string> layers, Block::Use use = Block::Use::pass) {
    blocks.push_back({"block", std::move(layers), use});
  }
  Result<Residency> decide(std::uint64_t max_bytes, std::uint64_t before_pass = 0) const {
    return decide_residency(plan, blocks,
                            {.max_bytes = max_bytes, .threads = 1, .before_pass = before_pass});
  }
  std::uint64_t least() const { return least_bytes(plan, blocks, {.threads = 1}); }
};

// small | large small large small small small
Blocks mixed() {
  Blocks b;
  const std::string t = "transformer_blocks.";
  b.add({"x_embedder"});
  b.add({t + "0.ff.linear_in"});
  b.add({t + "0.attn.to_q"});
  b.add({t + "1.ff.linear_in"});
  for (const char* name : {"to_k", "to_v", "to_q"}) b.add({t + "1.attn." + name});
  return b;
}

TEST(Residency, a_window_of_neighbours_and_not_of_the_largest_twice) {
  const Blocks b = mixed();
  const std::uint64_t window = small + large + small;  // block 0, and a large one by a small one
  const auto residency = b.decide(window);
  ASSERT_TRUE(residency.ok()) << residency.error().message;
  EXPECT_EQ(residency->pinned_bytes, small);
  EXPECT_EQ(residency->window_bytes, large + small);
  EXPECT_EQ(residency->peak_bytes, window);
  EXPECT_LT(window, small + 2 * large);
  EXPECT_EQ(residency->total_bytes, 5 * small + 2 * large);
  for (std::size_t i = 0; i < b.blocks.size(); ++i) {
    EXPECT_EQ(residency->pinned[i], i == 0);
    EXPECT_TRUE(residency->ahead[i]) << i;
  }
  EXPECT_EQ(next_streamed(b.blocks, *residency, 0), 1u);
  EXPECT_EQ(next_streamed(b.blocks, *residency, 6), 1u);
}

// A byte less: a large block is read when it is entered, the small ones ahead still.
TEST(Residency, one_block_at_a_time_where_two_do_not_fit) {
  const Blocks b = mixed();
  for (const std::uint64_t max : {small + large, small + large + small - 1}) {
    const auto residency = b.decide(max);
    ASSERT_TRUE(residency.ok()) << residency.error().message;
    EXPECT_EQ(residency->window_bytes, large);
    EXPECT_EQ(residency->peak_bytes, small + large);
    const std::vector<bool> ahead = {true, false, false, false, true, true, false};
    EXPECT_EQ(residency->ahead, ahead);
  }
}

TEST(Residency, refused_by_how_much) {
  const Blocks b = mixed();
  EXPECT_EQ(b.least(), small + large);
  const auto refused = b.decide(b.least() - 1);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::model_memory);
  for (const char* part : {"28.00 KiB is the least that works", "1 B more", "one block at a time"})
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
}

// Every budget is kept, and more of it never keeps less.
TEST(Residency, every_budget_is_held) {
  const Blocks b = mixed();
  const std::uint64_t total = b.decide(all_memory)->total_bytes;
  std::uint64_t pinned = 0;
  for (std::uint64_t max = b.least(); max <= total; max += 512) {
    const auto residency = b.decide(max);
    ASSERT_TRUE(residency.ok()) << residency.error().message;
    EXPECT_LE(residency->peak_bytes, max);
    EXPECT_LE(residency->bytes(), residency->peak_bytes);
    EXPECT_GE(residency->pinned_bytes, pinned) << max;
    EXPECT_EQ(residency->all(), max == total) << max;
    pinned = residency->pinned_bytes;
  }
  EXPECT_EQ(pinned, total);
}

// What only the preparation needs is let go before the pass, and is no neighbour of its end.
TEST(Residency, preparation_is_no_part_of_a_pass) {
  Blocks b;
  const std::string t = "transformer_blocks.";
  b.add({});
  b.add({t + "0.ff.linear_in"}, Block::Use::preparation);
  for (const char* name : {"to_k", "to_v", "to_q"}) b.add({t + "1.attn." + name});
  const auto whole_pass = b.decide(3 * small + large);
  ASSERT_TRUE(whole_pass.ok());
  EXPECT_TRUE(whole_pass->all());
  // One small block less: the pass is streamed in pairs, the preparation alone.
  const auto residency = b.decide(large);
  ASSERT_TRUE(residency.ok()) << residency.error().message;
  EXPECT_FALSE(residency->pinned[1]);
  EXPECT_FALSE(residency->ahead[1]);
  EXPECT_TRUE(residency->ahead[2] && residency->ahead[3] && residency->ahead[4]);
  EXPECT_EQ(next_streamed(b.blocks, *residency, 4), 2u);
  EXPECT_EQ(b.least(), large);
}

// Packed layers hold their file's bytes beside them while they are read.
TEST(Residency, reading_is_counted) {
  const Plan plan = *plan_file(std::string(PARFAIT_SOURCE_DIR) +
                                   "/examples/digits/diffusion_models/digits_mixed.safetensors",
                               {.io = Io::pread}, {});
  const plan::State& state = *plan.state();
  std::vector<Block> blocks(1);
  std::uint64_t most = 0;
  for (std::uint32_t i = 0; i < state.layers.size(); ++i) {
    if (!state.chosen[i].linear) continue;
    blocks.push_back({"block", {state.layers[i].name}});
    const std::uint64_t reading = runtime::reading_bytes(state, i, 1);
    EXPECT_GE(reading, state.layers[i].stored_bytes);
    most = std::max(most, state.layers[i].resident_bytes + reading);
  }
  ASSERT_GT(blocks.size(), 3u);
  EXPECT_EQ(least_bytes(plan, blocks, {.threads = 1}), most);
  // Loading all of them at once may use what a pass will use later.
  const std::uint64_t total = decide_residency(plan, blocks, {})->total_bytes;
  EXPECT_FALSE(decide_residency(plan, blocks, {.max_bytes = total, .threads = 1})->all());
  EXPECT_TRUE(
      decide_residency(plan, blocks, {.max_bytes = total, .threads = 1, .before_pass = total})
          ->all());
}

}  // namespace
}  // namespace parfait::models
