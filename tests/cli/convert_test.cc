#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

using ConvertTest = CliTest;
using Strings = std::vector<std::string>;

TEST_F(ConvertTest, ConvertsAndReports) {
  const std::string out = path("out.safetensors");
  const Ended ended = parfait({"convert", mixed_, "-o", out, "--to", "bf16", "--plain", "bf16"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  EXPECT_TRUE(contains(ended.out, "convrot_w4a4")) << ended.out;
  EXPECT_TRUE(contains(ended.out, "wrote " + out)) << ended.out;
  EXPECT_EQ(ended.err, "");
  const auto file = open(out);
  ASSERT_TRUE(file.ok());
  for (const Layer layer : *file) EXPECT_EQ(layer.format(), "bf16");
  for (const TensorInfo& tensor : file->tensors()) EXPECT_EQ(tensor.dtype, DType::bf16);
  EXPECT_EQ(names(), (Strings{"mixed.safetensors", "out.safetensors"}));
}

TEST_F(ConvertTest, ReportsAsJson) {
  const Ended ended = parfait({"convert", mixed_, "-o", path("out.safetensors"), "--to",
                               "w6a8_int8", "--json", "--threads", "1"});
  ASSERT_EQ(ended.status, 0) << ended.err;
  const nlohmann::json json = ended.json();
  ASSERT_EQ(json["layers"].size(), 2u);
  EXPECT_EQ(json["layers"][0]["from"], "convrot_w4a4");
  EXPECT_EQ(json["layers"][0]["to"], "w6a8_int8");
  EXPECT_EQ(json["files"][0], path("out.safetensors"));
}

TEST_F(ConvertTest, LosslessIsANoThatNamesTheFirstValue) {
  const Ended ended =
      parfait({"convert", mixed_, "-o", path("out.safetensors"), "--to", "bf16", "--lossless"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.err, "bf16 cannot hold its values exactly: column ")) << ended.err;
  EXPECT_EQ(lines(ended.err), 1u);
  EXPECT_EQ(names(), Strings{"mixed.safetensors"});
  EXPECT_EQ(parfait({"convert", mixed_, "-o", path("out.safetensors"), "--to", "f32", "--lossless"})
                .status,
            0);
}

TEST_F(ConvertTest, BadArgumentsAreOneSentence) {
  const struct {
    Strings arguments;
    std::string part;
  } cases[] = {
      {{"--to", "nvpf4"}, "nvfp4 is near"},
      {{"--to", "convrot_w4a4 grup=64"}, "grup=64: is no setting"},
      {{"--to", "q8_0"}, ".gguf"},
      {{"--to", "nvfp4", "--gguf"}, "cannot stand in a GGUF file"},
      {{"--to", "nvfp4", "--layers", "blocks.0.mlp.fc2"}, "blocks.0.mlp.fc1"},
      {{"--layers", "*"}, "no format"},
      {{"--names", "diffusers"}, "FLUX.2"},
      {{"--names", "klein"}, "comfy|diffusers"},
      {{"--max-shard", "0"}, "takes a size"},
      {{"--max-shard", "many"}, "takes a size"},
      {{"--max-memory", "1K"}, "too little"},
      {{"--threads", "0"}, "from 1 to"},
      {{"--plain", "f64"}, "f32|f16|bf16"},
  };
  for (const auto& [arguments, part] : cases) {
    Strings all = {"convert", mixed_, "-o", path("out.safetensors")};
    all.insert(all.end(), arguments.begin(), arguments.end());
    const Ended ended = parfait(all);
    EXPECT_EQ(ended.status, 2) << part;
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_EQ(names(), Strings{"mixed.safetensors"});
  }
}

TEST_F(ConvertTest, RefusesToWriteOverItsInput) {
  const std::string before = contents(mixed_);
  std::filesystem::create_symlink(mixed_, path("link.safetensors"));
  std::filesystem::create_hard_link(mixed_, path("hard.safetensors"));
  for (const char* name : {"mixed.safetensors", "link.safetensors", "hard.safetensors"}) {
    const Ended ended = parfait({"convert", mixed_, "-o", path(name), "--to", "bf16"});
    EXPECT_EQ(ended.status, 2) << name;
    EXPECT_TRUE(contains(ended.err, "is the input file")) << ended.err;
  }
  const Ended shards =
      parfait({"convert", mixed_, "-o", folder_.path().string(), "--max-shard", "1K"});
  EXPECT_EQ(shards.status, 2);
  EXPECT_TRUE(contains(shards.err, "new or empty folder")) << shards.err;
  EXPECT_EQ(contents(mixed_), before);
}

TEST_F(ConvertTest, TargetsThatCannotBeWritten) {
  for (const std::string& target : {path("no/such/folder/x.safetensors"), folder_.path().string(),
                                    std::string("/dev/full"), std::string("/proc/x.safetensors")}) {
    const Ended ended = parfait({"convert", mixed_, "-o", target, "--to", "bf16"});
    EXPECT_EQ(ended.status, 2) << target;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  }
  EXPECT_EQ(parfait({"convert", mixed_, "-o", "/proc/shards", "--max-shard", "1K"}).status, 2);
  EXPECT_EQ(names(), Strings{"mixed.safetensors"});
}

TEST_F(ConvertTest, AFullDiskLeavesTheOldFile) {
  const std::string out = folder_.write("out.safetensors", std::string_view("........{}")).string();
  // A file size limit fails the reservation as a full disk does.
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 1024;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Ended ended = parfait({"convert", mixed_, "-o", out, "--to", "f32"});
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(ended.status, 2);
  EXPECT_TRUE(contains(ended.err, "there is no room for its")) << ended.err;
  EXPECT_EQ(contents(out), "........{}");
  EXPECT_EQ(names(), (Strings{"mixed.safetensors", "out.safetensors"}));
}

TEST_F(ConvertTest, AnUnsoundFileIsRefusedWithItsFindings) {
  TestFile file;
  file.codes("a.weight", DType::i8, {4, 256});
  file.marker("a", R"({"format": "int8_tensorwise"})");
  const std::string source = folder_.write("unsound.safetensors", file.bytes()).string();
  const Ended ended = parfait({"convert", source, "-o", path("out.safetensors"), "--to", "bf16"});
  EXPECT_EQ(ended.status, 1);
  EXPECT_TRUE(contains(ended.err, "weight_scale")) << ended.err;
}

// Layers enough that a run can be ended among them.
TestFile many_layers() {
  TestFile file;
  for (int i = 0; i < 24; ++i)
    file.floats("blocks." + std::to_string(i) + ".fc.weight", DType::bf16, {256, 512},
                0.01f * static_cast<float>(i + 1));
  return file;
}

void wait_for_journal(const std::string& path, std::size_t entries) {
  for (int i = 0; i < 3000 && lines(contents(path)) < entries; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
}

TEST_F(ConvertTest, AKilledRunIsResumed) {
  const std::string source = folder_.write("many.safetensors", many_layers().bytes()).string();
  const std::string before = contents(source);
  const std::string out = path("out.safetensors"), whole = path("whole.safetensors");
  const Strings work = {"--to", "asym_w4a8_int8", "--threads", "1"};
  const auto command = [&](const std::string& target, const Strings& more) {
    Strings all = {"convert", source, "-o", target};
    all.insert(all.end(), work.begin(), work.end());
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  {
    Running running(command(out, {}));
    wait_for_journal(out + ".partial.journal", 4);
    running.send(SIGKILL);
    EXPECT_EQ(running.wait().status, 128 + SIGKILL);
  }
  EXPECT_FALSE(std::filesystem::exists(out));
  EXPECT_TRUE(std::filesystem::exists(out + ".partial"));
  EXPECT_EQ(contents(source), before);
  const Ended resumed = parfait(command(out, {"--resume", "--json"}));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_GE(resumed.json()["resumed"], 2);
  ASSERT_EQ(parfait(command(whole, {})).status, 0);
  EXPECT_TRUE(contents(out) == contents(whole));
  EXPECT_EQ(names(), (Strings{"many.safetensors", "mixed.safetensors", "out.safetensors",
                              "whole.safetensors"}));
}

TEST_F(ConvertTest, CtrlCLeavesNothing) {
  const std::string source = folder_.write("many.safetensors", many_layers().bytes()).string();
  const std::string out = path("out.safetensors");
  Running running({"convert", source, "-o", out, "--to", "asym_w4a8_int8", "--threads", "1"});
  wait_for_journal(out + ".partial.journal", 3);
  running.send(SIGINT);
  const Ended ended = running.wait();
  EXPECT_EQ(ended.status, 128 + SIGINT);
  EXPECT_TRUE(contains(ended.err, "interrupted")) << ended.err;
  EXPECT_EQ(names(), (Strings{"many.safetensors", "mixed.safetensors"}));
}

TEST_F(ConvertTest, ShardsAndAGgufFile) {
  const Ended shards =
      parfait({"convert", mixed_, "-o", path("shards"), "--max-shard", "1K", "--json"});
  ASSERT_EQ(shards.status, 0) << shards.err;
  EXPECT_GE(shards.json()["files"].size(), 3u);
  EXPECT_EQ(parfait({"check", path("shards")}).status, 0);
  const Ended same = parfait({"diff", mixed_, path("shards")});
  EXPECT_EQ(same.status, 0) << same.out;
  ASSERT_EQ(parfait({"convert", path("shards"), "-o", path("one.safetensors")}).status, 0);
  EXPECT_EQ(parfait({"diff", mixed_, path("one.safetensors")}).status, 0);
  const Ended gguf = parfait({"convert", mixed_, "-o", path("out.gguf"), "--to", "q8_0"});
  ASSERT_EQ(gguf.status, 0) << gguf.err;
  EXPECT_EQ(contents(path("out.gguf")).substr(0, 4), "GGUF");
}

TEST_F(ConvertTest, HasHelpWithExamples) {
  const Ended ended = parfait({"convert", "--help"});
  EXPECT_EQ(ended.status, 0);
  EXPECT_TRUE(contains(ended.out, "parfait convert mixed.safetensors"));
  EXPECT_TRUE(contains(ended.out, "convrot_w4a4"));
}

}  // namespace
}  // namespace parfait::test
