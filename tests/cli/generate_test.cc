// parfait generate: pictures from the digits example, and what it refuses.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cli/program.h"

namespace parfait::test {
namespace {

const std::string digits = std::string(PARFAIT_SOURCE_DIR) + "/examples/digits";
const std::string klein = std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/pipelines/klein";

std::string read(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class GenerateTest : public CliTest {
 protected:
  // The digits pipeline at its size, with more arguments.
  Ended generate(std::vector<std::string> more) {
    std::vector<std::string> arguments = {"generate", "--model-dir", digits,
                                          "--width",  "64",          "--height",
                                          "64",       "--prompt",    "a handwritten seven"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return parfait(arguments);
  }
};

TEST_F(GenerateTest, WritesAPictureWithItsParameters) {
  const std::string out = path("seven.png");
  const Ended ended = generate({"--seed", "3", "--steps", "4", "-o", out});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  for (const char* part : {"text encoder", "6 convrot_w4a4, 6 int8_tensorwise", "seed 3, 4 steps"})
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
  const std::string png = read(out);
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n"));
  EXPECT_TRUE(contains(png, "parameters"));
  EXPECT_TRUE(contains(png,
                       "a handwritten seven\nSteps: 4, Sampler: Euler, CFG scale: 1, Seed: 3, "
                       "Size: 64x64, Model: digits_mixed"));
}

TEST_F(GenerateTest, SameSeedSamePictureWhateverTheThreads) {
  ASSERT_EQ(generate({"-o", path("a.png"), "--threads", "1"}).status, 0);
  ASSERT_EQ(generate({"-o", path("b.png"), "--threads", "3"}).status, 0);
  EXPECT_EQ(read(path("a.png")), read(path("b.png")));
}

TEST_F(GenerateTest, NumbersSeveralPicturesAndTellsAll) {
  const auto json = generate({"--count", "2", "--json", "-o", path("d.png")}).json();
  ASSERT_EQ(json["pictures"].size(), 2u);
  EXPECT_EQ(json["pictures"][1]["seed"], 1);
  EXPECT_EQ(json["pictures"][0]["path"], path("d-01.png"));
  EXPECT_TRUE(std::filesystem::exists(path("d-02.png")));
  EXPECT_EQ(json["parts"].size(), 3u);
  EXPECT_GT(json["pictures"][0]["profile"]["linear"]["calls"], 0);
}

TEST_F(GenerateTest, RefusesWithOneSentence) {
  const auto expect = [&](const Ended& ended, const char* part) {
    EXPECT_EQ(ended.status, 2) << part;
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  };
  expect(parfait({"generate", "--model-dir", digits, "--prompt", "a", "--width", "100", "-o",
                  path("x.png")}),
         "the nearest are 96 and 112");
  expect(generate({"--vae", klein + "/text_encoder", "-o", path("x.png")}),
         "no image auto-encoder");
  expect(generate({"--transformer", digits + "/vae", "-o", path("x.png")}), "image auto-encoder");
  expect(generate({"--text-encoder", klein + "/text_encoder", "-o", path("x.png")}),
         "a Qwen3 of width 128 is needed");
  expect(generate({"--max-memory", "1M", "-o", path("x.png")}), "too little memory");
  expect(generate({"--max-memory", "much", "-o", path("x.png")}), "takes a size");
  expect(generate({"-o", path("absent/x.png")}), "folder does not exist");
  expect(generate({"-o", "/dev/full"}), "not a file that could be replaced");
  expect(parfait({"generate", "--prompt", "a"}), "--transformer FILE names it");
  EXPECT_FALSE(std::filesystem::exists(path("x.png")));
}

}  // namespace
}  // namespace parfait::test
