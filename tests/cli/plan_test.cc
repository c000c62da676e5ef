#include "cli/program.h"

namespace parfait::test {
namespace {

// One W4A4 layer with an input split that falls between groups: K = 6400, group 256.
class PlanTest : public CliTest {
 protected:
  PlanTest() {
    TestFile file;
    file.codes("blocks.0.attn.out_proj.weight", DType::i8, {4, 3200});
    file.floats("blocks.0.attn.out_proj.weight_scale", DType::f32, {4}, 0.01f);
    file.marker("blocks.0.attn.out_proj",
                R"({"format": "convrot_w4a4", "convrot_groupsize": 256})");
    uneven_ = folder_.write("uneven.safetensors", file.bytes()).string();
  }
  std::string uneven_;
};

TEST_F(PlanTest, GivesEachLayerItsMethodAndReason) {
  const Ended ended = parfait({"plan", mixed_, "--isa", "reference"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "w4a4 int4")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "int8.reference")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "plain tensors")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "\x1b"));
}

TEST_F(PlanTest, GivesJson) {
  const auto json = parfait({"plan", mixed_, "--json"}).json();
  ASSERT_EQ(json["layers"].size(), 2u);
  EXPECT_EQ(json["layers"][0]["method"], "w4a4 int4");
  EXPECT_EQ(json["layers"][1]["method"], "int8");
  EXPECT_NE(json["layers"][1]["reason"], "");
  EXPECT_EQ(json["ranks"], 1);
  EXPECT_EQ(json["rank_bytes"].size(), 1u);
}

TEST_F(PlanTest, TheOptionOverridesTheActivationWidth) {
  const auto json = parfait({"plan", mixed_, "--json", "--w4a4-activation", "int8"}).json();
  EXPECT_EQ(json["layers"][0]["method"], "w4a4 int8");
}

TEST_F(PlanTest, ShowsOnlyTheLayersThatMatch) {
  const Ended ended = parfait({"plan", mixed_, "--layers", "*fc1"});
  EXPECT_TRUE(contains(ended.out, "(1 of 2 layers; the totals are of all)")) << ended.out;
  EXPECT_FALSE(contains(ended.out, "qkv_proj"));
  EXPECT_EQ(parfait({"plan", mixed_, "--layers", "nope"}).status, 2);
}

TEST_F(PlanTest, AnInputSplitBetweenGroupsReplicatesOrIsUneven) {
  const auto even = parfait({"plan", uneven_, "--tp", "2", "--json"}).json();
  EXPECT_EQ(even["layers"][0]["split"], "replicated");
  EXPECT_NE(even["layers"][0]["split_reason"], "");
  const Ended uneven = parfait({"plan", uneven_, "--tp", "2", "--tp-uneven"});
  EXPECT_TRUE(contains(uneven.out, "3328 + 3072")) << uneven.out;
  const Ended strict = parfait({"plan", uneven_, "--tp", "2", "--tp-strict"});
  EXPECT_EQ(strict.status, 1);
  EXPECT_EQ(strict.out, "");
  EXPECT_TRUE(contains(strict.err, "blocks.0.attn.out_proj")) << strict.err;
}

TEST_F(PlanTest, SeveralNumbersOfRanksGiveASummary) {
  const Ended ended = parfait({"plan", uneven_, "--tp", "1,2,4"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(lines(ended.out), 4u) << ended.out;
  const auto json = parfait({"plan", uneven_, "--tp", "1,2,4", "--json"}).json();
  ASSERT_EQ(json["plans"].size(), 3u);
  EXPECT_EQ(json["plans"][1]["ranks"], 2);
  EXPECT_EQ(json["plans"][1]["splits"]["replicated"], 1);
}

TEST_F(PlanTest, RanksThatMakeNoSenseGiveTwo) {
  for (const char* ranks : {"0", "2000", "2,,4", "x", "2,", "-1", ""}) {
    const Ended ended = parfait({"plan", uneven_, "--tp", ranks});
    EXPECT_EQ(ended.status, 2) << ranks;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  }
}

TEST_F(PlanTest, ABadRulesFileGivesTwoAndTheLine) {
  folder_.write("rules.txt", std::string_view("# comment\nwhat is this\n"));
  const Ended ended = parfait({"plan", uneven_, "--tp", "2", "--tp-rules", path("rules.txt")});
  EXPECT_EQ(ended.status, 2);
  EXPECT_TRUE(contains(ended.err, "rules.txt")) << ended.err;
  EXPECT_TRUE(contains(ended.err, "line 2")) << ended.err;
  EXPECT_EQ(parfait({"plan", uneven_, "--tp-rules", path("absent.txt")}).status, 2);
}

TEST_F(PlanTest, TheInstructionSetMayComeFromTheEnvironment) {
  const auto json = parfait({"plan", mixed_, "--json"}, {"PARFAIT_ISA=reference"}).json();
  EXPECT_EQ(json["isa"], "reference");
  EXPECT_EQ(json["layers"][1]["kernel"], "int8.reference");
  const Ended ended = parfait({"plan", mixed_}, {"PARFAIT_ISA=mmx"});
  EXPECT_EQ(ended.status, 2);
  EXPECT_TRUE(contains(ended.err, "PARFAIT_ISA")) << ended.err;
  EXPECT_EQ(parfait({"plan", mixed_, "--isa", "mmx"}).status, 2);
}

TEST_F(PlanTest, AFileThatIsNotSoundIsNotPlanned) {
  TestFile file = mixed_file();
  file.codes("blocks.1.mlp.fc1.weight", DType::i8, {4, 256});
  file.marker("blocks.1.mlp.fc1", R"({"format": "int9_future"})");
  const std::string path = folder_.write("bad.safetensors", file.bytes()).string();
  for (const char* verb : {"plan", "run"}) {
    const Ended ended = parfait({verb, path});
    EXPECT_EQ(ended.status, 1) << verb;
    EXPECT_EQ(ended.out, "") << verb;
    EXPECT_TRUE(contains(ended.err, "error format.unknown: blocks.1.mlp.fc1")) << ended.err;
    const auto json = parfait({verb, path, "--json"}).json();
    EXPECT_EQ(json["error"]["code"], "check.not_sound");
    EXPECT_GE(json["findings"].size(), 1u);
  }
}

}  // namespace
}  // namespace parfait::test
