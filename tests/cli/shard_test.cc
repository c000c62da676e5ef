#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

class ShardTest : public CliTest {
 protected:
  ShardTest() {
    TestFile file;
    file.metadata("format", "pt");
    file.codes("blocks.0.attn.out_proj.weight", DType::i8, {4, 3200});
    file.floats("blocks.0.attn.out_proj.weight_scale", DType::f32, {4}, 0.01f);
    file.marker("blocks.0.attn.out_proj",
                R"({"format": "convrot_w4a4", "convrot_groupsize": 256})");
    file.codes("blocks.0.mlp.fc1.weight", DType::i8, {16, 256});
    file.floats("blocks.0.mlp.fc1.weight_scale", DType::f32, {16, 1}, 0.01f);
    file.marker("blocks.0.mlp.fc1", R"({"format": "int8_tensorwise"})");
    source_ = folder_.write("source.safetensors", file.bytes()).string();
  }
  std::string source_;
};

TEST_F(ShardTest, MergeGivesBackWhatShardCut) {
  const Ended cut = parfait({"shard", source_, "--tp", "2", "-o", path("ranks")});
  ASSERT_EQ(cut.status, 0) << cut.err;
  EXPECT_TRUE(contains(cut.out, "rank_00_of_02.safetensors")) << cut.out;
  EXPECT_TRUE(contains(cut.out, "1 layer split, 1 on every rank")) << cut.out;
  for (const char* rank : {"ranks/rank_00_of_02.safetensors", "ranks/rank_01_of_02.safetensors"}) {
    EXPECT_EQ(parfait({"check", path(rank), "--deep"}).status, 0);
    EXPECT_EQ(parfait({"plan", path(rank)}).status, 0);
    EXPECT_EQ(parfait({"inspect", path(rank)}).status, 0);
  }
  const Ended joined = parfait({"merge", path("ranks"), "-o", path("merged.safetensors")});
  ASSERT_EQ(joined.status, 0) << joined.err;
  EXPECT_TRUE(contains(joined.out, "byte for byte")) << joined.out;
  EXPECT_EQ(contents(path("merged.safetensors")), contents(source_));
  const auto json = parfait({"merge", path("ranks"), "-o", path("again"), "--json"}).json();
  EXPECT_EQ(json["files"][0]["bytes"], contents(source_).size());
}

TEST_F(ShardTest, TakesTheOptionsOfPlan) {
  const Ended strict = parfait({"shard", source_, "--tp", "2", "--tp-strict", "-o", path("ranks")});
  EXPECT_EQ(strict.status, 1);
  EXPECT_TRUE(contains(strict.err, "blocks.0.attn.out_proj")) << strict.err;
  EXPECT_FALSE(std::filesystem::exists(path("ranks")));
  const auto uneven =
      parfait({"shard", source_, "--tp", "2", "--tp-uneven", "-o", path("ranks"), "--json"}).json();
  EXPECT_EQ(uneven["layers_split"], 2);
  EXPECT_EQ(uneven["layers_replicated"], 0);
  folder_.write("rules.txt", std::string_view("* replicate\n"));
  const auto whole = parfait({"shard", source_, "--tp", "2", "--tp-rules", path("rules.txt"), "-o",
                              path("ranks"), "--json"})
                         .json();
  EXPECT_EQ(whole["layers_replicated"], 2);
  EXPECT_EQ(
      parfait({"shard", source_, "--tp", "2", "--tp-rules", path("absent"), "-o", path("ranks")})
          .status,
      2);
}

TEST_F(ShardTest, BadArgumentsGiveTwoAndOneSentence) {
  const std::vector<std::vector<std::string>> bad = {
      {"shard", source_, "--tp", "0", "-o", path("ranks")},
      {"shard", source_, "--tp", "1025", "-o", path("ranks")},
      {"shard", source_, "--tp", "x", "-o", path("ranks")},
      {"shard", source_, "--tp", "2"},
      {"shard", source_, "-o", path("ranks")},
      {"shard", path("absent"), "--tp", "2", "-o", path("ranks")},
      {"shard", source_, "--tp", "2", "-o", folder_.path().string()},
      {"shard", source_, "--tp", "2", "-o", source_},
      {"shard", source_, "--tp", "2", "-o", path("no/such/folder")},
      {"merge", path("absent"), "-o", path("out")},
      {"merge", folder_.path().string(), "-o", path("out")},
      {"merge", path("ranks")},
  };
  for (const auto& arguments : bad) {
    const Ended ended = parfait(arguments);
    EXPECT_EQ(ended.status, 2) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
  EXPECT_EQ(names(), (std::vector<std::string>{"mixed.safetensors", "source.safetensors"}));
}

TEST_F(ShardTest, ReadOnlyTargetsAndFullDisksLeaveNothing) {
  if (::geteuid() != 0) {
    std::filesystem::create_directory(path("locked"));
    ::chmod(path("locked").c_str(), 0555);
    EXPECT_EQ(parfait({"shard", source_, "--tp", "2", "-o", path("locked/ranks")}).status, 2);
    ::chmod(path("locked").c_str(), 0755);
    std::filesystem::remove(path("locked"));
  }
  // A limit on the size of files stands for a full disk. Children inherit it.
  ASSERT_EQ(parfait({"shard", source_, "--tp", "2", "-o", path("ranks")}).status, 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Ended cut = parfait({"shard", source_, "--tp", "2", "-o", path("more")});
  const Ended joined = parfait({"merge", path("ranks"), "-o", path("merged")});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(cut.status, 2);
  EXPECT_TRUE(contains(cut.err, "cannot be written")) << cut.err;
  EXPECT_EQ(joined.status, 2);
  EXPECT_TRUE(contains(joined.err, "there is no room for its")) << joined.err;
  EXPECT_EQ(names(),
            (std::vector<std::string>{"mixed.safetensors", "ranks", "source.safetensors"}));
}

TEST_F(ShardTest, AnUnsoundFileIsNotCut) {
  TestFile file = mixed_file();
  file.codes("blocks.1.mlp.fc1.weight", DType::i8, {4, 256});
  file.marker("blocks.1.mlp.fc1", R"({"format": "int9_future"})");
  const std::string bad = folder_.write("bad.safetensors", file.bytes()).string();
  const Ended ended = parfait({"shard", bad, "--tp", "2", "-o", path("ranks")});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.err, "error format.unknown")) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(path("ranks")));
}

TEST_F(ShardTest, TrailingBytesComeBack) {
  const std::string trailed = path("trailed.safetensors");
  std::ofstream(trailed, std::ios::binary) << contents(source_) << "L2P_bypass_footer";
  EXPECT_EQ(parfait({"shard", trailed, "--tp", "2", "-o", path("ranks")}).status, 1);
  ASSERT_EQ(parfait({"shard", trailed, "--tp", "2", "-o", path("ranks"), "--lenient"}).status, 0);
  ASSERT_EQ(parfait({"merge", path("ranks"), "-o", path("merged")}).status, 0);
  EXPECT_EQ(contents(path("merged")), contents(trailed));
}

TEST_F(ShardTest, AKilledRunLeavesTheSourceAndNoRanks) {
  // Interrupted as soon as it has begun to write, or done: never half.
  TestFile file;
  for (int i = 0; i < 64; ++i) {
    const std::string name = "blocks." + std::to_string(i) + ".mlp.fc1";
    file.raw(name + ".weight", DType::bf16, {64, 4096},
             std::vector<std::byte>(64 * 4096 * 2, std::byte{1}));
  }
  const std::string big = folder_.write("big.safetensors", file.bytes()).string();
  const std::string before = contents(big);
  Running running({"shard", big, "--tp", "2", "-o", path("ranks")});
  ::usleep(30'000);
  running.send(SIGTERM);
  const Ended ended = running.wait();
  EXPECT_TRUE(ended.status == 128 + SIGTERM || ended.status == 0) << ended.status << ended.err;
  EXPECT_EQ(std::filesystem::exists(path("ranks")), ended.status == 0);
  EXPECT_EQ(contents(big), before);
  for (const std::string& name : names()) EXPECT_FALSE(contains(name, "partial")) << name;
}

}  // namespace
}  // namespace parfait::test
