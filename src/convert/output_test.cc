#include "convert/output.h"

#include <gtest/gtest.h>

#include "container/tensor_index.h"
#include "formats/format.h"
#include "support/test_file.h"

namespace parfait::convert {
namespace {

Checkpoint opened(const std::filesystem::path& path) {
  auto index = container::open_index(path, {});
  EXPECT_TRUE(index.ok()) << index.error().message;
  auto found = formats::detect(*index);
  EXPECT_TRUE(found.ok());
  return Checkpoint(*found);
}

TEST(Output, whole_lines_first_then_by_width_and_markers_last) {
  test::TemporaryFolder folder;
  const std::vector<container::TensorDeclaration> tensors = {
      {"odd", DType::u8, {3}},          {"a.comfy_quant", DType::u8, {64}},
      {"bias", DType::bf16, {5}},       {"weight", DType::i8, {8, 16}},
      {"scale", DType::f32, {3}},       {"second", DType::f32, {16}},
      {"b.comfy_quant", DType::u8, {7}}};
  OutputOptions options;
  options.metadata = {{"key", "value"}};
  const auto path = folder.path() / "out.safetensors";
  auto out = Output::create(path, tensors, {}, options);
  ASSERT_TRUE(out.ok()) << out.error().message;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> bytes(out->bytes(i), std::byte(i + 1));
    ASSERT_TRUE(out->put(i, 0, bytes).ok());
    EXPECT_FALSE(out->put(i, 1, bytes).ok()) << "past the end";
    std::vector<std::byte> back(bytes.size());
    ASSERT_TRUE(out->get(i, 0, back).ok());
    EXPECT_EQ(back, bytes);
    EXPECT_FALSE(out->get(i, 1, back).ok());
  }
  ASSERT_TRUE(out->file().finish().ok());
  auto index = container::open_index(path, {});
  ASSERT_TRUE(index.ok()) << index.error().message;
  std::vector<std::string> names;
  for (const TensorInfo& tensor : (*index)->tensors()) names.emplace_back(tensor.name);
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "second", "scale", "bias", "odd",
                                             "a.comfy_quant", "b.comfy_quant"}));
  EXPECT_EQ((*index)->find("weight")->offset % 64, 0u);
  EXPECT_EQ((*index)->find("second")->offset % 64, 0u);
  EXPECT_EQ((*index)->find("scale")->offset % 4, 0u);
}

TEST(Output, refuses_its_inputs_under_any_name) {
  test::TemporaryFolder folder;
  test::TestFile file;
  file.floats("a.weight", DType::f32, {4, 4}, 1);
  const auto path = folder.write("in.safetensors", file.bytes());
  std::filesystem::create_hard_link(path, folder.path() / "hard");
  std::filesystem::create_symlink(path, folder.path() / "soft");
  const Checkpoint input = opened(path);
  for (const char* name : {"in.safetensors", "hard", "soft"}) {
    const auto out =
        Output::create(folder.path() / name, {{"a", DType::u8, {1}}}, std::span(&input, 1), {});
    ASSERT_FALSE(out.ok()) << name;
    EXPECT_NE(out.error().message.find("is the input file"), std::string::npos);
  }
  EXPECT_EQ(opened(path).state()->layers.size(), 1u);
}

}  // namespace
}  // namespace parfait::convert
