#include "cli/program.h"

namespace parfait::test {
namespace {

using InspectTest = CliTest;

TEST_F(InspectTest, PrintsALineForEachLayerAndTheTotals) {
  const Ended ended = parfait({"inspect", mixed_});
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.err, "");
  for (const char* part : {"blocks.0.attn.qkv_proj  convrot_w4a4     linear  3 × 256",
                           "blocks.0.mlp.fc1        int8_tensorwise  linear  3 × 256", "all layers",
                           "plain tensors", "made_by   tests", "9 tensors, 2 layers"})
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  EXPECT_FALSE(contains(ended.out, "\x1b")) << "colour in a pipe";
  EXPECT_FALSE(contains(ended.out, " \n")) << "spaces at the end of a line";
}

TEST_F(InspectTest, GivesJson) {
  const Ended ended = parfait({"inspect", mixed_, "--json"});
  EXPECT_EQ(ended.status, 0);
  const auto json = ended.json();
  ASSERT_EQ(json["layers"].size(), 2u);
  EXPECT_EQ(json["layers"][0]["name"], "blocks.0.attn.qkv_proj");
  EXPECT_EQ(json["layers"][0]["format"], "convrot_w4a4");
  EXPECT_EQ(json["layers"][0]["rotate_group"], 256);
  EXPECT_EQ(json["layers"][1]["rows"], 3);
  EXPECT_EQ(json["layers"][1]["columns"], 256);
  EXPECT_EQ(json["layers"][1]["parts"][0]["dtype"], "I8");
  EXPECT_EQ(json["totals"].size(), 2u);
  EXPECT_EQ(json["plain"]["tensors"], 2);
  EXPECT_EQ(json["plain"]["by_dtype"]["BF16"]["bytes"], 512);
  EXPECT_EQ(json["files"][0]["metadata"]["made_by"], "tests");
}

TEST_F(InspectTest, ChoosesLayersByPattern) {
  const auto json = parfait({"inspect", mixed_, "--json", "--layers", "*.mlp.*"}).json();
  ASSERT_EQ(json["layers"].size(), 1u);
  EXPECT_EQ(json["layers"][0]["name"], "blocks.0.mlp.fc1");
}

TEST_F(InspectTest, APatternThatMatchesNothingOffersTheNearestName) {
  const Ended ended = parfait({"inspect", mixed_, "--layers", "blocks.0.mlp.fc2"});
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(ended.out, "");
  EXPECT_TRUE(contains(ended.err, "nearest is blocks.0.mlp.fc1")) << ended.err;
  const auto json = parfait({"inspect", mixed_, "--layers", "nothing*", "--json"}).json();
  EXPECT_EQ(json["error"]["code"], "layer.not_found");
}

TEST_F(InspectTest, ShowsScalarsAsValues) {
  TestFile file = mixed_file();
  file.codes("blocks.1.mlp.fc1.weight", DType::f8_e4m3, {4, 32});
  file.values("blocks.1.mlp.fc1.weight_scale", DType::f32, {}, {0.25f});
  file.marker("blocks.1.mlp.fc1", R"({"format": "float8_e4m3fn"})");
  file.raw("steps", DType::i64, {1}, std::vector<std::byte>(8, std::byte{0xff}));
  const std::string scaled = folder_.write("scaled.safetensors", file.bytes()).string();
  const Ended ended = parfait({"inspect", scaled, "--tensors"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_TRUE(contains(ended.out, "[] = 1.0")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "[] = 0.25")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "[1] = -1")) << ended.out;
  const auto json = parfait({"inspect", scaled, "--tensors", "--json"}).json();
  EXPECT_EQ(json["plain_tensors"][1]["name"], "logit_scale");
  EXPECT_EQ(json["plain_tensors"][1]["value"], "1.0");
}

TEST_F(InspectTest, CountsWhatOpeningFound) {
  TestFile file = mixed_file();
  file.marker("blocks.7.gone", R"({"format": "nvfp4"})");
  const std::string path = folder_.write("orphan.safetensors", file.bytes()).string();
  const Ended ended = parfait({"inspect", path});
  EXPECT_EQ(ended.status, 0);
  EXPECT_TRUE(contains(ended.out, "found while opening: 1 error")) << ended.out;
}

TEST_F(InspectTest, HostileNamesDoNotReachTheTerminal) {
  TestFile file;
  file.floats("evil\x1b[31m.weight", DType::f32, {2, 2}, 1.0f);
  file.metadata("key\x1b]0;", std::string(5000, 'x'));
  const std::string path = folder_.write("evil.safetensors", file.bytes()).string();
  const Ended ended = parfait({"inspect", path, "--tensors"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_FALSE(contains(ended.out, "\x1b"));
  EXPECT_TRUE(contains(ended.out, "\\x1b[31m")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "(5,000 bytes)")) << ended.out;
  EXPECT_FALSE(contains(ended.out, std::string(200, 'x')));
}

TEST_F(InspectTest, LongNamesAreWhole) {
  TestFile file;
  const std::string name = "blocks." + std::string(400, 'n');
  file.floats(name + ".weight", DType::f32, {2, 2}, 1.0f);
  const Ended ended =
      parfait({"inspect", folder_.write("long.safetensors", file.bytes()).string()});
  EXPECT_TRUE(contains(ended.out, name)) << ended.out;
}

TEST_F(InspectTest, ListsTheFilesOfAShardSet) {
  TestFile first, second;
  first.floats("a.weight", DType::f32, {2, 2}, 1.0f);
  second.floats("b.weight", DType::f32, {2, 2}, 1.0f);
  folder_.write("set/model-1.safetensors", first.bytes());
  folder_.write("set/model-2.safetensors", second.bytes());
  folder_.write(
      "set/model.safetensors.index.json",
      std::string_view(R"({"metadata": {}, "weight_map": {"a.weight": "model-1.safetensors",)"
                       R"( "b.weight": "model-2.safetensors"}})"));
  const Ended ended = parfait({"inspect", path("set")});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "2 files")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "model-2.safetensors")) << ended.out;
}

TEST_F(InspectTest, ReadsByPreadToo) {
  const Ended mapped = parfait({"inspect", mixed_, "--tensors"});
  const Ended pread = parfait({"inspect", mixed_, "--tensors", "--io", "pread"});
  EXPECT_EQ(mapped.out, pread.out);
}

}  // namespace
}  // namespace parfait::test
