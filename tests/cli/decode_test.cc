#include <gtest/gtest.h>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

using DecodeTest = CliTest;

TEST_F(DecodeTest, WritesWhatTheLibraryDecodes) {
  for (const auto& [word, dtype] :
       {std::pair("f32", DType::f32), {"f16", DType::f16}, {"bf16", DType::bf16}}) {
    const std::string out = path(std::string("out-") + word + ".safetensors");
    const Ended ended = parfait({"decode", mixed_, "blocks.0.mlp.fc1", "-o", out, "--dtype", word});
    ASSERT_EQ(ended.status, 0) << ended.err;
    const auto source = open(mixed_);
    const auto result = open(out);
    ASSERT_TRUE(source.ok() && result.ok());
    std::vector<float> expected(3 * 256);
    ASSERT_TRUE(decode(*source, *source->find("blocks.0.mlp.fc1"), 0, 3, expected).ok());
    ASSERT_EQ(result->tensors().size(), 1u);
    const TensorInfo tensor = result->tensors()[0];
    EXPECT_EQ(tensor.name, "blocks.0.mlp.fc1.weight");
    EXPECT_EQ(tensor.dtype, dtype);
    EXPECT_EQ(shape_text(tensor.shape), "[3, 256]");
    const auto bytes = read_tensor(*result, tensor);
    ASSERT_TRUE(bytes.ok());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      std::byte rounded[4];
      store_float(dtype, rounded, 0, expected[i]);
      EXPECT_EQ(load_float(dtype, bytes->data(), i), load_float(dtype, rounded, 0)) << i;
    }
  }
}

TEST_F(DecodeTest, TilesJoin) {
  // More values than are decoded at a time.
  TestFile file;
  file.codes("wide.weight", DType::i8, {70, 65536});
  file.floats("wide.weight_scale", DType::f32, {70, 1}, 0.01f);
  file.marker("wide", R"({"format": "int8_tensorwise"})");
  const std::string source = folder_.write("wide.safetensors", file.bytes()).string();
  const std::string out = path("out.safetensors");
  ASSERT_EQ(parfait({"decode", source, "wide", "-o", out, "--io", "pread"}).status, 0);
  const auto original = open(source);
  const auto result = open(out);
  ASSERT_TRUE(original.ok() && result.ok());
  const auto codes = read_tensor(*original, original->tensors()[0]);
  const auto values = read_tensor(*result, result->tensors()[0]);
  ASSERT_TRUE(codes.ok() && values.ok());
  ASSERT_EQ(values->size(), codes->size() * 4);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < codes->size(); ++i)
    wrong += load_float(DType::f32, values->data(), i) !=
             static_cast<float>(static_cast<std::int8_t>((*codes)[i])) * 0.01f;
  EXPECT_EQ(wrong, 0u);
}

TEST_F(DecodeTest, RefusesToWriteOverItsInput) {
  const auto before = std::filesystem::file_size(mixed_);
  std::filesystem::create_symlink(mixed_, path("link.safetensors"));
  std::filesystem::create_hard_link(mixed_, path("hard.safetensors"));
  for (const char* name : {"mixed.safetensors", "link.safetensors", "hard.safetensors"}) {
    const Ended ended = parfait({"decode", mixed_, "blocks.0.mlp.fc1", "-o", path(name)});
    EXPECT_EQ(ended.status, 2) << name;
    EXPECT_TRUE(contains(ended.err, "is the input file")) << ended.err;
  }
  EXPECT_EQ(std::filesystem::file_size(mixed_), before);
  EXPECT_EQ(parfait({"check", mixed_}).status, 0);
}

TEST_F(DecodeTest, LeavesNothingBehindWhenItFails) {
  EXPECT_EQ(parfait({"decode", mixed_, "blocks.9", "-o", path("out.safetensors")}).status, 2);
  EXPECT_EQ(parfait({"decode", mixed_, "blocks.*", "-o", path("out.safetensors")}).status, 2);
  EXPECT_EQ(parfait({"decode", mixed_, "blocks.0.mlp.fc1", "-o", path("no/such/folder/x")}).status,
            2);
  EXPECT_EQ(parfait({"decode", mixed_, "blocks.0.mlp.fc1", "-o", folder_.path()}).status, 2);
  EXPECT_EQ(names(), std::vector<std::string>{"mixed.safetensors"});
}

TEST_F(DecodeTest, SaysWhenValuesLeaveTheRangeOfF16) {
  TestFile file;
  file.floats("big.weight", DType::f32, {2, 2}, 1e6f);
  const std::string source = folder_.write("big.safetensors", file.bytes()).string();
  const Ended ended =
      parfait({"decode", source, "big", "-o", path("out.safetensors"), "--dtype", "f16"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_TRUE(contains(ended.err, "4 values of 4 are beyond the range of F16")) << ended.err;
}

}  // namespace
}  // namespace parfait::test
