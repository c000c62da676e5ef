#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

const struct {
  DType dtype;
  std::string_view name;
} types[] = {{DType::f32, "f32"}, {DType::f16, "f16"}, {DType::bf16, "bf16"}};

TEST(Plain, matrices_are_layers_of_their_type) {
  for (const auto& type : types) {
    TestFile file;
    file.values("a.weight", type.dtype, {2, 3}, {1, -2, 0.5f, 4, 0, -0.25f});
    file.floats("a.bias", DType::f32, {2}, 1);
    const Opened opened(file);
    EXPECT_EQ(opened.layer().format->name, type.name);
    EXPECT_EQ(opened.layer().rotate_group, 0u);
    expect_clean(opened.check(CheckDepth::data));
    EXPECT_EQ(opened.decode(), (std::vector<float>{1, -2, 0.5f, 4, 0, -0.25f}));
    EXPECT_EQ(opened.decode_rows("a", 1, 1), (std::vector<float>{4, 0, -0.25f}));
    expect_size_matches(opened.layer());
    EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 1u);
  }
}

TEST(Plain, vectors_and_convolutions_stay_tensors) {
  TestFile file;
  file.floats("norm.weight", DType::bf16, {8}, 1);
  file.floats("conv.weight", DType::f16, {2, 2, 3, 3}, 1);
  file.floats("none.weight", DType::f32, {0, 3}, 1);
  file.raw("table.weight", DType::i64, {2, 2}, bytes_of(32, 1));
  const Opened opened(file);
  EXPECT_TRUE(opened.checkpoint().layers.empty());
  EXPECT_EQ(opened.checkpoint().plain_tensors.size(), 4u);
}

TEST(Plain, embeddings_by_name) {
  TestFile file;
  file.floats("model.embed_tokens.weight", DType::bf16, {10, 4}, 1);
  const Opened opened(file);
  EXPECT_EQ(opened.layer("model.embed_tokens").kind, LayerKind::embedding);
  expect_clean(opened.check());
}

TEST(Plain, bias_of_another_shape) {
  TestFile file;
  file.floats("a.weight", DType::bf16, {4, 4}, 1);
  file.floats("a.bias", DType::bf16, {5}, 1);
  expect_finding(Opened(file).check(), ErrorCode::part_shape, Severity::error, {"[5]", "[4]"});
}

TEST(Plain, nan_and_infinity_are_found_once) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& type : types) {
    TestFile file;
    file.values("a.weight", type.dtype, {2, 3}, {1, -2, inf, 4, -inf, inf - inf});
    expect_finding(Opened(file).check(CheckDepth::data), ErrorCode::data_not_finite,
                   Severity::error, {"a.weight", "3, the first at index 2"});
  }
}

TEST(Plain, nothing_but_zeros) {
  TestFile file;
  file.floats("a.weight", DType::bf16, {2, 3}, 0);
  expect_finding(Opened(file).check(CheckDepth::data), ErrorCode::data_all_zero, Severity::warning);
}

}  // namespace
}  // namespace parfait::formats
