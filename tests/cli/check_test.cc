#include "cli/program.h"

namespace parfait::test {
namespace {

using CheckTest = CliTest;

TEST_F(CheckTest, ASoundFileGivesZero) {
  const Ended ended = parfait({"check", mixed_});
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.out, "sound: 9 tensors, 2 layers, no findings\n");
  EXPECT_EQ(ended.err, "");
}

TEST_F(CheckTest, FindingsGiveOneWithCodeLayerTensorGotAndExpected) {
  TestFile file = mixed_file();
  file.codes("blocks.1.mlp.fc1.weight", DType::i8, {4, 256});
  file.floats("blocks.1.mlp.fc1.weight_scale", DType::f32, {3}, 1.0f);
  file.marker("blocks.1.mlp.fc1", R"({"format": "int8_tensorwise"})");
  const std::string path = folder_.write("bad.safetensors", file.bytes()).string();
  const Ended ended = parfait({"check", path});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.out, "error part.shape: blocks.1.mlp.fc1: ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "not sound: 12 tensors, 3 layers, 1 error\n")) << ended.out;
  const auto json = parfait({"check", path, "--json"}).json();
  EXPECT_EQ(json["sound"], false);
  ASSERT_EQ(json["findings"].size(), 1u);
  const auto finding = json["findings"][0];
  EXPECT_EQ(finding["code"], "part.shape");
  EXPECT_EQ(finding["severity"], "error");
  EXPECT_EQ(finding["layer"], "blocks.1.mlp.fc1");
  EXPECT_EQ(finding["tensor"], "blocks.1.mlp.fc1.weight_scale");
  EXPECT_NE(finding["got"], "");
  EXPECT_NE(finding["expected"], "");
  EXPECT_NE(finding["message"], "");
}

TEST_F(CheckTest, ManyFindingsAreAllListedAndThenCounted) {
  TestFile file;
  for (int i = 0; i < 30; ++i) {
    const std::string layer = "blocks." + std::to_string(i) + ".attn.qkv";
    file.codes(layer + ".weight", DType::i8, {4, 256});
    file.marker(layer, R"({"format": "int9_future"})");
  }
  const std::string path = folder_.write("many.safetensors", file.bytes()).string();
  const Ended ended = parfait({"check", path});
  EXPECT_EQ(ended.status, 1);
  for (int i = 0; i < 30; ++i)
    EXPECT_TRUE(contains(ended.out, "blocks." + std::to_string(i) + ".attn.qkv:")) << i;
  EXPECT_TRUE(contains(ended.out, "30  error     format.unknown")) << ended.out;
}

TEST_F(CheckTest, WarningsAreSoundUnlessTheyCount) {
  TestFile file = mixed_file();
  auto bytes = file.bytes();
  for (char c : std::string("L2P_bypass_x")) bytes.push_back(static_cast<std::byte>(c));
  const std::string path = folder_.write("trailing.safetensors", bytes).string();
  EXPECT_EQ(parfait({"check", path}).status, 1);
  const Ended lenient = parfait({"check", path, "--lenient"});
  EXPECT_EQ(lenient.status, 0);
  EXPECT_TRUE(contains(lenient.out, "warning header.trailing")) << lenient.out;
  EXPECT_TRUE(contains(lenient.out, "sound: 9 tensors, 2 layers, 1 warning\n")) << lenient.out;
  EXPECT_EQ(parfait({"check", path, "--lenient", "--strict-warnings"}).status, 1);
}

TEST_F(CheckTest, DeepReadsTheData) {
  TestFile file = mixed_file();
  file.values("norm2.weight", DType::f32, {2}, {1.0f, NAN});
  const std::string path = folder_.write("nan.safetensors", file.bytes()).string();
  EXPECT_EQ(parfait({"check", path}).status, 0);
  const Ended deep = parfait({"check", path, "--deep"});
  EXPECT_EQ(deep.status, 1);
  EXPECT_TRUE(contains(deep.out, "data.not_finite")) << deep.out;
  EXPECT_TRUE(contains(deep.out, "all data read")) << deep.out;
}

TEST_F(CheckTest, WhatCannotBeOpenedGivesTwoAndOneSentence) {
  folder_.write("page.safetensors", std::string_view("<!DOCTYPE html><html>log in</html>"));
  folder_.write("pointer.safetensors",
                std::string_view("version https://git-lfs.github.com/spec/v1\noid sha256:0\n"));
  folder_.write("zip.safetensors", std::string_view("PK\x03\x04 and more bytes follow here"));
  folder_.write("empty.safetensors", std::string_view(""));
  std::vector<std::byte> cut = mixed_file().bytes();
  cut.resize(cut.size() - 100);
  folder_.write("cut.safetensors", cut);
  for (const char* name : {"page", "pointer", "zip", "empty", "cut", "absent"}) {
    const std::string file = path(std::string(name) + ".safetensors");
    const Ended ended = parfait({"check", file});
    EXPECT_EQ(ended.status, 2) << name;
    EXPECT_EQ(ended.out, "") << name;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_TRUE(ended.err.starts_with("parfait: ")) << ended.err;
    EXPECT_TRUE(contains(ended.err, file)) << ended.err;
    EXPECT_FALSE(parfait({"check", file, "--json"}).json()["error"]["code"].empty());
  }
}

TEST_F(CheckTest, AFileThatMayNotBeReadGivesTwo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read every file";
  std::filesystem::permissions(mixed_, std::filesystem::perms::none);
  const Ended ended = parfait({"check", mixed_});
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(lines(ended.err), 1u) << ended.err;
}

}  // namespace
}  // namespace parfait::test
