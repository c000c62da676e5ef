// Where output goes and how the program ends: pipes, terminals, full disks, signals, bad arguments.

#include <csignal>
#include <thread>

#include "cli/program.h"

namespace parfait::test {
namespace {

using StreamsTest = CliTest;

TEST_F(StreamsTest, WithoutArgumentsItHelps) {
  const Ended ended = parfait({});
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.err, "");
  for (const char* verb : {"inspect", "check", "plan", "diff", "decode", "run", "formats"}) {
    EXPECT_TRUE(contains(ended.out, verb)) << ended.out;
    const Ended help = parfait({verb, "--help"});
    EXPECT_EQ(help.status, 0);
    EXPECT_TRUE(contains(help.out, std::string("Usage: parfait ") + verb)) << help.out;
    EXPECT_TRUE(contains(help.out, "Example")) << help.out;
  }
  const Ended version = parfait({"--version"});
  EXPECT_EQ(version.status, 0);
  EXPECT_TRUE(version.out.starts_with("parfait ")) << version.out;
}

TEST_F(StreamsTest, BadArgumentsGiveTwoAndOneSentence) {
  const std::vector<std::vector<std::string>> bad = {
      {"frobnicate"},
      {"--frobnicate"},
      {"inspect"},
      {"inspect", mixed_, "--frobnicate"},
      {"inspect", mixed_, "extra"},
      {"inspect", mixed_, "--io", "telepathy"},
      {"inspect", mixed_, "--max-header", "-1"},
      {"inspect", mixed_, "--max-header", "many"},
      {"run", mixed_, "--rows", "0"},
      {"run", mixed_, "--rows", "18446744073709551615"},
      {"run", mixed_, "--dtype", "f8"},
      {"run", mixed_, "--rows", "4", "--input", mixed_},
      {"decode", mixed_, "blocks.0.mlp.fc1"},
      {"diff", mixed_},
      {"inspect", mixed_, "--no-convrot"},
  };
  for (const auto& arguments : bad) {
    const Ended ended = parfait(arguments);
    EXPECT_EQ(ended.status, 2) << arguments.back();
    EXPECT_EQ(ended.out, "") << arguments.back();
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_TRUE(ended.err.starts_with("parfait: ")) << ended.err;
  }
}

TEST_F(StreamsTest, FormatsListsThemAll) {
  const auto json = parfait({"formats", "--json"}).json();
  const Ended text = parfait({"formats"}), markdown = parfait({"formats", "--markdown"});
  EXPECT_EQ(lines(text.out), json["formats"].size() + 1);
  EXPECT_EQ(lines(markdown.out), json["formats"].size() + 2);
  for (const auto& format : json["formats"]) {
    EXPECT_TRUE(contains(text.out, format["name"]));
    EXPECT_TRUE(contains(markdown.out, "`" + format["name"].get<std::string>() + "`"));
  }
}

TEST_F(StreamsTest, ColourIsForTerminalsThatWantIt) {
  const std::vector<std::string> arguments = {"inspect", mixed_};
  const Ended terminal = parfait_on_terminal(arguments, {"TERM=xterm", "NO_COLOR="});
  if (terminal.status < 0) GTEST_SKIP() << "no pseudo-terminal is to be had";
  EXPECT_EQ(terminal.status, 0);
  EXPECT_TRUE(contains(terminal.out, "\x1b[1m")) << terminal.out;
  EXPECT_FALSE(contains(parfait_on_terminal(arguments, {"TERM=dumb", "NO_COLOR="}).out, "\x1b"));
  EXPECT_FALSE(contains(parfait_on_terminal(arguments, {"TERM=xterm", "NO_COLOR=1"}).out, "\x1b"));
}

TEST_F(StreamsTest, AReaderThatLeavesEndsItQuietly) {
  TestFile file;
  for (int i = 0; i < 3000; ++i)
    file.floats("blocks." + std::to_string(i) + ".weight", DType::f32, {2, 2}, 1.0f);
  const std::string many = folder_.write("many.safetensors", file.bytes()).string();
  Running running({"inspect", many});
  char byte;
  ASSERT_EQ(::read(running.out(), &byte, 1), 1);
  running.close_out();
  const Ended ended = running.wait();
  EXPECT_EQ(ended.status, 128 + SIGPIPE);
  EXPECT_EQ(ended.err, "");
}

TEST_F(StreamsTest, AFullDeviceGivesTwoAndASentence) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"inspect", mixed_},
                                             {"check", mixed_, "--json"},
                                             {"formats"},
                                             {"--help"},
                                             {"--version"},
                                             {"run", mixed_},
                                             {"plan", mixed_}}) {
    const Ended ended = parfait(arguments, {}, "/dev/full");
    EXPECT_EQ(ended.status, 2) << arguments[0];
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_TRUE(contains(ended.err, "standard output cannot be written")) << ended.err;
  }
}

// Interrupts a command once its output's temporary is there: nothing may be left.
class InterruptTest : public CliTest {
 protected:
  InterruptTest() {
    // 2 GiB of BF16 zeros, on no disk: a hole behind the header.
    const std::vector<std::byte> header = raw_file(
        R"({"big.weight":{"dtype":"BF16","shape":[65536,16384],"data_offsets":[0,2147483648]}})");
    large_ = folder_.write("large.safetensors", header).string();
    std::filesystem::resize_file(large_, header.size() + (1ull << 31));
    before_ = names();
  }

  void expect_clean_end(const std::vector<std::string>& arguments, int signal) {
    Running running(arguments);
    // Until its temporary is there; a program that ends before that has failed.
    siginfo_t ended_early = {};
    while (names() == before_ && ended_early.si_pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ::waitid(P_PID, static_cast<id_t>(running.pid()), &ended_early, WEXITED | WNOHANG | WNOWAIT);
    }
    ASSERT_EQ(running.send(signal), 0);
    const Ended ended = running.wait();
    EXPECT_EQ(ended.status, 128 + signal) << ended.err;
    EXPECT_TRUE(contains(ended.err, "interrupted")) << ended.err;
    EXPECT_EQ(names(), before_);
  }

  std::string large_;
  std::vector<std::string> before_;
};

TEST_F(InterruptTest, DecodeLeavesNoFile) {
  expect_clean_end({"decode", large_, "big", "-o", path("out.safetensors")}, SIGINT);
  expect_clean_end({"decode", large_, "big", "-o", path("out.safetensors")}, SIGTERM);
}

TEST_F(InterruptTest, RunLeavesNoFile) {
  expect_clean_end({"run", large_, "-o", path("out.safetensors"), "--rows", "1", "--repeat",
                    "1000000", "--verify"},
                   SIGINT);
}

}  // namespace
}  // namespace parfait::test
