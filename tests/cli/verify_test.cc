#include <gtest/gtest.h>

#include <random>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

// A file of plain layers; copies of it with some weights changed.
class VerifyTest : public CliTest {
 protected:
  VerifyTest() {
    a_ = write("a.safetensors", 1);
    b_ = write("b.safetensors", 1.2f);
  }
  std::string write(const std::string& name, float factor, int layers = 3) {
    TestFile file;
    std::mt19937 random(2);
    std::normal_distribution<float> bell(0, 0.02f);
    for (int i = 0; i < layers; ++i) {
      std::vector<float> values(16 * 64);
      for (float& value : values) value = bell(random) * (i == 1 ? factor : 1);
      file.values("blocks." + std::to_string(i) + ".a_rather_long_name.of_a.layer.fc1.weight",
                  DType::f32, {16, 64}, values);
    }
    file.floats("norm.weight", DType::bf16, {8}, 1);
    return folder_.write(name, file.bytes()).string();
  }
  std::string a_, b_;
};

TEST_F(VerifyTest, TheSameFileIsWithinItsLimits) {
  const Ended ended = parfait({"verify", a_, a_});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "all within their limits")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "same"));
  EXPECT_FALSE(contains(ended.out, "\x1b"));
}

TEST_F(VerifyTest, TheWorstLayerComesFirstAndGivesOne) {
  const Ended ended = parfait({"verify", a_, b_});
  EXPECT_EQ(ended.status, 1) << ended.err;
  EXPECT_TRUE(contains(ended.out, "1 of 4 beyond the limit")) << ended.out;
  EXPECT_LT(ended.out.find("blocks.1."), ended.out.find("blocks.0.")) << ended.out;
  EXPECT_EQ(parfait({"verify", a_, b_, "--threshold", "0.3"}).status, 0);
  EXPECT_EQ(parfait({"verify", a_, b_, "--layers", "blocks.0.*"}).status, 0);
}

TEST_F(VerifyTest, GivesJson) {
  const auto json = parfait({"verify", a_, b_, "--json", "--threads", "2"}).json();
  EXPECT_EQ(json["within_limits"], false);
  EXPECT_EQ(json["exceeding"], 1);
  ASSERT_EQ(json["layers"].size(), 4u);
  EXPECT_NEAR(json["layers"][0]["relative_l2"].get<double>(), 0.2, 1e-5);
  EXPECT_NEAR(json["layers"][0]["sqnr_db"].get<double>(), 13.98, 0.01);
  EXPECT_EQ(json["layers"][0]["exceeds"], true);
  EXPECT_TRUE(json["layers"][3]["sqnr_db"].is_null());
}

TEST_F(VerifyTest, LayersOfOneFileOnlyAreNamed) {
  const std::string more = write("more.safetensors", 1, 4);
  const Ended ended = parfait({"verify", a_, more});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.out, "only in b")) << ended.out;
  EXPECT_EQ(parfait({"verify", more, a_, "--json"}).json()["layers"][0]["comparison"], "only in a");
}

TEST_F(VerifyTest, ListsTheWorstAndAllOnRequest) {
  const std::string many = write("many.safetensors", 1, 40);
  const Ended ended = parfait({"verify", many, many});
  EXPECT_TRUE(contains(ended.out, "and 21 that are closer")) << ended.out;
  EXPECT_EQ(lines(ended.out), 1u + 20 + 1 + 2);
  EXPECT_EQ(lines(parfait({"verify", many, many, "--all"}).out), 1u + 41 + 2);
}

TEST_F(VerifyTest, FitsATerminal) {
  const Ended ended = parfait_on_terminal({"verify", a_, b_}, {"NO_COLOR=1"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.out, "…")) << ended.out;
  for (std::size_t at = 0, end = 0; (end = ended.out.find('\n', at)) != std::string::npos;
       at = end + 1) {
    std::size_t width = 0;
    for (std::size_t i = at; i < end && ended.out[i] != '\r'; ++i)
      width += (static_cast<unsigned char>(ended.out[i]) & 0xc0) != 0x80;
    EXPECT_LE(width, 80u) << ended.out.substr(at, end - at);
  }
}

TEST_F(VerifyTest, BadArgumentsGiveTwoAndOneSentence) {
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"verify", a_},
                                                    {"verify", a_, path("absent")},
                                                    {"verify", a_, b_, "--threshold", "-1"},
                                                    {"verify", a_, b_, "--threshold", "nan"},
                                                    {"verify", a_, b_, "--threshold", "x"},
                                                    {"verify", a_, b_, "--threads", "0"},
                                                    {"verify", a_, b_, "--layers", "block.0"}}) {
    const Ended ended = parfait(arguments);
    EXPECT_EQ(ended.status, 2) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_EQ(ended.out, "");
  }
}

TEST_F(VerifyTest, AnUnsoundFileGivesOneAndItsFindings) {
  TestFile file;
  file.codes("fc1.weight", DType::i8, {4, 256});
  file.marker("fc1", R"({"format": "int9_future"})");
  const std::string bad = folder_.write("bad.safetensors", file.bytes()).string();
  const Ended ended = parfait({"verify", a_, bad});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.err, "format.unknown")) << ended.err;
}

}  // namespace
}  // namespace parfait::test
