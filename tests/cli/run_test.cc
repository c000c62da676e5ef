#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

using RunTest = CliTest;

TEST_F(RunTest, RunsEachLayerByItsOwnMethodAndVerifies) {
  const Ended ended = parfait({"run", mixed_, "--verify", "--rows", "5"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  EXPECT_TRUE(contains(ended.out, "w4a4 int4")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "worst rel. L2")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "\x1b"));
  const auto json = parfait({"run", mixed_, "--verify", "--json"}).json();
  ASSERT_EQ(json["layers"].size(), 2u);
  for (const auto& layer : json["layers"]) {
    EXPECT_EQ(layer["rows"], 16);
    EXPECT_EQ(layer["within_tolerance"], true) << layer;
    EXPECT_GT(layer["relative_l2"], 0.0);
    EXPECT_GT(layer["gops"], 0.0);
  }
  EXPECT_EQ(json["above_tolerance"], 0);
}

TEST_F(RunTest, EveryDTypeAndInstructionSetAndReaderIsWithinTolerance) {
  for (const char* dtype : {"f32", "f16", "bf16"})
    for (const char* io : {"mapped", "pread"})
      for (const char* activation : {"int4", "int8"}) {
        const Ended ended =
            parfait({"run", mixed_, "--verify", "--dtype", dtype, "--io", io, "--isa", "reference",
                     "--w4a4-activation", activation, "--threads", "2", "--repeat", "1"});
        EXPECT_EQ(ended.status, 0) << dtype << io << activation << ended.out << ended.err;
      }
}

TEST_F(RunTest, WritesItsOutputsTheSameForAnySelectionAndNumberOfThreads) {
  const std::string all = path("all.safetensors"), one = path("one.safetensors");
  ASSERT_EQ(parfait({"run", mixed_, "--seed", "7", "-o", all, "--dtype", "f32"}).status, 0);
  ASSERT_EQ(parfait({"run", mixed_, "--seed", "7", "-o", one, "--dtype", "f32", "--layers", "*fc1",
                     "--threads", "1"})
                .status,
            0);
  const auto a = open(all), b = open(one);
  ASSERT_TRUE(a.ok() && b.ok());
  ASSERT_EQ(a->tensors().size(), 2u);
  ASSERT_EQ(b->tensors().size(), 1u);
  EXPECT_EQ(b->tensors()[0].name, "blocks.0.mlp.fc1");
  EXPECT_EQ(shape_text(b->tensors()[0].shape), "[16, 3]");
  EXPECT_EQ(*read_tensor(*a, a->tensors()[1]), *read_tensor(*b, b->tensors()[0]));
}

TEST_F(RunTest, TakesInputsByLayerNameAndByX) {
  TestFile input;
  input.floats("blocks.0.mlp.fc1", DType::f32, {2, 3, 256}, 0.5f);
  input.floats("x", DType::bf16, {4, 256}, 0.25f);
  const std::string x = folder_.write("x.safetensors", input.bytes()).string();
  const std::string y = path("y.safetensors");
  const Ended ended = parfait({"run", mixed_, "--input", x, "-o", y, "--verify"});
  ASSERT_EQ(ended.status, 0) << ended.err << ended.out;
  const auto result = open(y);
  ASSERT_TRUE(result.ok());
  ASSERT_EQ(result->tensors().size(), 2u);
  EXPECT_EQ(shape_text(result->tensors()[0].shape), "[4, 3]");
  EXPECT_EQ(result->tensors()[0].dtype, DType::bf16);
  EXPECT_EQ(shape_text(result->tensors()[1].shape), "[2, 3, 3]");
  EXPECT_EQ(result->tensors()[1].dtype, DType::f32);
}

TEST_F(RunTest, SkipsWithAReasonWhatItCannotRun) {
  TestFile file = mixed_file();
  file.codes("model.embed_tokens.weight", DType::i8, {40, 64});
  file.floats("model.embed_tokens.weight_scale", DType::f32, {40, 1}, 0.1f);
  file.marker("model.embed_tokens", R"({"format": "int8_tensorwise"})");
  const std::string source = folder_.write("embedding.safetensors", file.bytes()).string();
  const Ended ended = parfait({"run", source});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "model.embed_tokens: skipped: an embedding")) << ended.out;
  const Ended alone = parfait({"run", source, "--layers", "*embed*"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_TRUE(contains(alone.err, "an embedding is looked up")) << alone.err;

  TestFile input;
  input.floats("x", DType::bf16, {4, 64}, 0.25f);
  const std::string x = folder_.write("x.safetensors", input.bytes()).string();
  const Ended narrow = parfait({"run", mixed_, "--input", x});
  EXPECT_EQ(narrow.status, 2);
  EXPECT_TRUE(contains(narrow.err, "256 columns are needed")) << narrow.err;
}

TEST_F(RunTest, RefusesToWriteOverItsInputs) {
  TestFile input;
  input.floats("x", DType::bf16, {4, 256}, 0.25f);
  const std::string x = folder_.write("x.safetensors", input.bytes()).string();
  EXPECT_EQ(parfait({"run", mixed_, "-o", mixed_}).status, 2);
  EXPECT_EQ(parfait({"run", mixed_, "--input", x, "-o", x}).status, 2);
  EXPECT_EQ(parfait({"check", mixed_}).status, 0);
  EXPECT_EQ(names(), (std::vector<std::string>{"mixed.safetensors", "x.safetensors"}));
}

TEST_F(RunTest, ARowOfNaNIsAboveTolerance) {
  TestFile input;
  input.floats("x", DType::f32, {2, 256}, NAN);
  const std::string x = folder_.write("x.safetensors", input.bytes()).string();
  const Ended ended = parfait({"run", mixed_, "--input", x, "--verify", "--layers", "*fc1"});
  EXPECT_EQ(ended.status, 1) << ended.out;
  EXPECT_TRUE(contains(ended.err, "1 layer above tolerance")) << ended.err;
}

TEST_F(RunTest, DiffTellsSameFromDifferent) {
  EXPECT_EQ(parfait({"diff", mixed_, mixed_}).status, 0);
  TestFile file = mixed_file();
  file.floats("more.weight", DType::f32, {2, 2}, 1.0f);
  const std::string other = folder_.write("other.safetensors", file.bytes()).string();
  const Ended ended = parfait({"diff", mixed_, other});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.out, "more")) << ended.out;
  const auto json = parfait({"diff", mixed_, other, "--json"}).json();
  EXPECT_EQ(json["same"], false);
  ASSERT_EQ(json["differences"].size(), 1u);
  EXPECT_EQ(json["differences"][0]["what"], "only in b");
  EXPECT_EQ(parfait({"diff", mixed_, path("absent")}).status, 2);
}

}  // namespace
}  // namespace parfait::test
