// parfait bench: what it measures and prints, peers, and what it refuses. Small shapes, no speeds.

#include "cli/program.h"

#if defined(PARFAIT_WITH_BENCH)

namespace parfait::test {
namespace {

using BenchTest = CliTest;

TEST_F(BenchTest, MeasuresEveryKernelAndSaysOnWhat) {
  const Ended ended = parfait({"bench", "--shapes", "70x256", "--rows", "1", "5", "--repeats", "1",
                               "--no-attention", "--json"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  const auto json = ended.json();
  EXPECT_FALSE(json["machine"].get<std::string>().empty());
  EXPECT_GT(json["peaks"]["read_gbs"], 0.0);
  EXPECT_GT(json["peaks"]["copy_gbs"], 0.0);
  std::map<std::string, int> seen;
  for (const auto& entry : json["linear"]) {
    ++seen[entry["what"]];
    EXPECT_EQ(entry["N"], 70);
    EXPECT_EQ(entry["K"], 256);
    EXPECT_GT(entry["seconds"], 0.0) << entry;
    EXPECT_GT(entry["gops"], 0.0) << entry;
  }
  for (const char* what : {"int8 product", "w4a4 product", "w4a8 product", "w6a8 product",
                           "int8 layer", "w4a4 layer", "w4a8 layer", "w6a8 layer", "bf16 layer"})
    EXPECT_EQ(seen[what], 2) << what;  // one for each number of rows
  EXPECT_EQ(json["packing"].size(), 4u);
  EXPECT_FALSE(json.contains("attention"));
}

TEST_F(BenchTest, PrintsTablesAndForcesAnInstructionSet) {
  const Ended ended =
      parfait({"bench", "--shapes", "32x256", "--rows", "2", "--repeats", "1", "--no-attention"},
              {"PARFAIT_ISA=reference"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(ended.err, "");
  for (const char* part : {"machine ", "peaks ", "int8 layer", "How many times as fast",
                           "Packing at load", "int8.reference"})
    EXPECT_TRUE(contains(ended.out, part)) << part << "\n" << ended.out;
}

TEST_F(BenchTest, MeasuresAPeerBesideItself) {
  const std::string peer =
      "echo parfait-peer 1 half_second never; while read name m n k; do "
      "if [ $name = never ]; then echo -; else echo 0.5; fi; done";
  const auto json = parfait({"bench", "--shapes", "32x256", "--rows", "2", "--repeats", "1",
                             "--no-attention", "--json", "--peer", peer})
                        .json();
  int found = 0;
  for (const auto& entry : json["linear"]) {
    EXPECT_NE(entry["what"], "never");
    if (entry["what"] != "half_second") continue;
    ++found;
    EXPECT_EQ(entry["seconds"], 0.5);
  }
  EXPECT_EQ(found, 1);
}

TEST_F(BenchTest, RefusesWhatItCannotMeasure) {
  const auto refused = [&](std::vector<std::string> arguments, const char* part) {
    arguments.insert(arguments.begin(), "bench");
    const Ended ended = parfait(arguments);
    EXPECT_EQ(ended.status, 2) << ended.out;
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
  };
  refused({"--shapes", "nothing"}, "is no shape");
  refused({"--shapes", "10x100"}, "rotated in groups of 256");
  refused({"--shapes", "0x256"}, "whole number");
  refused({"--shapes", "99999999999999999999x256"}, "whole number");
  refused({"--rows", "0"}, "rows");
  refused({"--repeats", "0"}, "repeats");
  refused({"--isa", "mmx"}, "mmx");
  refused({"--shapes", "32x256", "--peer", "true"}, "first line");
  refused({"--shapes", "32x256", "--peer", "echo hello"}, "first line");
}

}  // namespace
}  // namespace parfait::test

#endif  // PARFAIT_WITH_BENCH
