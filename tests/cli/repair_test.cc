#include <gtest/gtest.h>
#include <sys/stat.h>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

class RepairCliTest : public CliTest {
 protected:
  static TestFile broken() {
    TestFile file;
    file.codes("a.weight", DType::i8, {4, 256});
    file.floats("a.weight_scale", DType::f32, {4}, 0.5f);
    file.marker("a", R"({"convrot": true, "convrot_groupsize": 256})");
    return file;
  }
  std::string broken_ = folder_.write("broken.safetensors", broken().bytes()).string();
};

TEST_F(RepairCliTest, ADryRunTellsAndWritesNothing) {
  const auto before = std::filesystem::last_write_time(broken_);
  const Ended ended = parfait({"repair", broken_});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "a.comfy_quant")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "this was a dry run")) << ended.out;
  EXPECT_EQ(std::filesystem::last_write_time(broken_), before);
  const auto json = parfait({"repair", broken_, "--json"}).json();
  EXPECT_EQ(json["changes"].size(), 2u);
  EXPECT_EQ(json["remaining"].size(), 0u);
  EXPECT_EQ(json["files"][0]["way"], "in place");
}

TEST_F(RepairCliTest, WriteMendsAndASecondRunHasNothingToDo) {
  EXPECT_EQ(parfait({"check", broken_, "--strict-warnings"}).status, 1);
  const Ended ended = parfait({"repair", broken_, "--write"});
  EXPECT_EQ(ended.status, 0) << ended.err;
  const Ended check = parfait({"check", broken_, "--strict-warnings"});
  EXPECT_EQ(check.status, 0) << check.out;
  EXPECT_EQ(parfait({"repair", broken_}).out, "nothing to mend\n");
  EXPECT_EQ(names(), (std::vector<std::string>{"broken.safetensors", "mixed.safetensors"}));
}

TEST_F(RepairCliTest, ANewFileLeavesTheOldOneAlone) {
  const auto before = std::filesystem::last_write_time(broken_);
  const Ended ended = parfait({"repair", broken_, "-o", path("new.safetensors")});
  EXPECT_EQ(ended.status, 0) << ended.err;
  EXPECT_EQ(std::filesystem::last_write_time(broken_), before);
  EXPECT_EQ(parfait({"check", path("new.safetensors"), "--strict-warnings"}).status, 0);
  const Ended same = parfait({"repair", broken_, "-o", broken_});
  EXPECT_EQ(same.status, 2);
  EXPECT_TRUE(contains(same.err, "is the input file")) << same.err;
}

TEST_F(RepairCliTest, WhatCannotBeProvenGivesOne) {
  TestFile file;
  file.codes("a.weight", DType::i8, {4, 256});
  file.floats("a.weight_scale", DType::f32, {4, 1}, 0.5f);
  const std::string bare = folder_.write("bare.safetensors", file.bytes()).string();
  const Ended ended = parfait({"repair", bare, "--write"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.out, "stays: ")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "nothing to mend; 1 finding cannot be mended")) << ended.out;
}

TEST_F(RepairCliTest, BadFilesGiveTwoAndOneSentence) {
  folder_.write("page.safetensors", std::string_view("<!DOCTYPE html><html>log in</html>"));
  for (const char* name : {"page", "absent"}) {
    const Ended ended = parfait({"repair", path(std::string(name) + ".safetensors"), "--write"});
    EXPECT_EQ(ended.status, 2) << name;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  }
}

TEST_F(RepairCliTest, AReadOnlyFileGivesTwo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may write every file";
  std::filesystem::permissions(broken_, std::filesystem::perms::owner_read);
  const Ended ended = parfait({"repair", broken_, "--write"});
  EXPECT_EQ(ended.status, 2);
  EXPECT_EQ(lines(ended.err), 1u) << ended.err;
}

}  // namespace
}  // namespace parfait::test
