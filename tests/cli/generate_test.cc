// parfait generate: pictures from the digits example, and what it refuses.

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <map>
#include <thread>

#include "cli/program.h"

namespace parfait::test {
namespace {

const std::string digits = std::string(PARFAIT_SOURCE_DIR) + "/examples/digits";
const std::string klein = std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/pipelines/klein";

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
  const std::string png = contents(out);
  EXPECT_TRUE(png.starts_with("\x89PNG\r\n"));
  EXPECT_TRUE(contains(png, "parameters"));
  EXPECT_TRUE(contains(png,
                       "a handwritten seven\nSteps: 4, Sampler: Euler, CFG scale: 1, Seed: 3, "
                       "Size: 64x64, Model: digits_mixed"));
}

TEST_F(GenerateTest, SameSeedSamePictureWhateverTheThreads) {
  ASSERT_EQ(generate({"-o", path("a.png"), "--threads", "1"}).status, 0);
  ASSERT_EQ(generate({"-o", path("b.png"), "--threads", "3"}).status, 0);
  EXPECT_EQ(contents(path("a.png")), contents(path("b.png")));
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
  expect(generate({"--seed", "18446744073709551615", "--count", "2", "-o", path("x.png")}),
         "the last seed would be beyond");
  for (const char* guidance : {"nan", "inf", "1e30", "-1", "four", ""})
    expect(generate({"--guidance", guidance, "-o", path("x.png")}), "guidance");
  for (const char* seed : {"-1", "18446744073709551616", "1.5", "0x1"})
    expect(generate({"--seed", seed, "-o", path("x.png")}), "--seed: takes a number");
  for (const char* steps : {"0", "1001", "-4"})
    expect(generate({"--steps", steps, "-o", path("x.png")}), "--steps: takes a number");
  expect(parfait({"generate", "--model-dir", digits, "--prompt", "a", "--width", "100000",
                  "--height", "100000", "-o", path("x.png")}),
         "8192 pixels");
  expect(parfait({"generate", "--prompt", "a"}), "--transformer FILE names it");
  EXPECT_FALSE(std::filesystem::exists(path("x.png")));
}

// Before anything is loaded: the parts are not even told.
TEST_F(GenerateTest, RefusesWhatCannotBeWrittenBeforeTheWork) {
  std::filesystem::create_directory(path("folder.png"));
  std::filesystem::create_directory(path("d-02.png"));
  const auto before = names();
  const auto expect = [&](const std::vector<std::string>& more, const char* part) {
    const Ended ended = generate(more);
    EXPECT_EQ(ended.status, 2) << part;
    EXPECT_EQ(ended.out, "") << part;
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  };
  expect({"-o", path("folder.png")}, "is a folder");
  expect({"--sheet", path("folder.png")}, "is a folder");
  expect({"-o", path("d.png"), "--count", "3"}, "d-02.png: is a folder");
  expect({"-o", "/proc/x.png"}, "/proc/x.png: cannot be created");
  expect({"-o", path("x.png"), "--prompt", "a\xff"}, "not UTF-8 from byte 1 on");
  EXPECT_EQ(names(), before);
}

TEST_F(GenerateTest, NoFileOfTheModelIsWrittenOver) {
  const std::string model = path("model");
  std::filesystem::copy(digits, model, std::filesystem::copy_options::recursive);
  const std::string transformer = model + "/diffusion_models/digits_mixed.safetensors";
  const std::string link = path("link.safetensors");
  std::filesystem::create_symlink(transformer, link);
  std::map<std::string, std::string> before;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(model))
    if (entry.is_regular_file()) before[entry.path().string()] = contents(entry.path());
  const auto expect = [&](const std::vector<std::string>& more, const char* part) {
    std::vector<std::string> arguments = {"generate", "--model-dir", model, "--width",
                                          "64",       "--height",    "64",  "--prompt",
                                          "a seven",  "--steps",     "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Ended ended = parfait(arguments);
    EXPECT_EQ(ended.status, 2) << part;
    EXPECT_EQ(ended.out, "") << part;
    EXPECT_TRUE(contains(ended.err, part)) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  };
  for (const auto& [name, bytes] : before) {
    if (name.ends_with(".safetensors") && !contains(name, "originals") &&
        !contains(name, "classifier"))
      expect({"--capture", name}, "is the input file");
    else if (!name.ends_with(".safetensors"))
      expect({"--capture", name}, "is there already and is not a safetensors file");
    if (!name.ends_with(".png")) expect({"-o", name}, name.c_str());
  }
  expect({"-o", link}, "is the input file");
  expect({"--sheet", model + "/tokenizer/tokenizer.json"}, "is not a PNG picture");
  expect({"-o", path("a.png"), "--capture", path("./a.png")}, "is named for two outputs");
  for (const auto& [name, bytes] : before) EXPECT_TRUE(contents(name) == bytes) << name;
}

TEST_F(GenerateTest, AFullDiskLeavesTheOldPicture) {
  const std::string old = "\x89PNG\r\n\x1a\nold";
  folder_.write("x.png", std::string_view(old));
  const auto before = names();
  rlimit old_limit;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  // A file size limit, which the program inherits, fails writes as a full disk does.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit = old_limit;
  limit.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Ended ended = generate({"-o", path("x.png")});
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(ended.status, 2);
  EXPECT_TRUE(contains(ended.err, "x.png")) << ended.err;
  EXPECT_EQ(contents(path("x.png")), old);
  EXPECT_EQ(names(), before);
}

// In the middle of the steps, with a preview that is there by then.
TEST_F(GenerateTest, AnInterruptLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Running running({"generate", "--model-dir", digits, "--prompt", "a", "--width", "64",
                     "--height", "64", "--steps", "1000", "--preview", "-o", path("x.png")});
    siginfo_t ended_early = {};
    while (!std::filesystem::exists(path("x.preview.png")) && ended_early.si_pid == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ::waitid(P_PID, static_cast<id_t>(running.pid()), &ended_early, WEXITED | WNOHANG | WNOWAIT);
    }
    ASSERT_EQ(running.send(signal), 0);
    const Ended ended = running.wait();
    EXPECT_EQ(ended.status, 128 + signal) << ended.err;
    EXPECT_TRUE(contains(ended.err, "interrupted")) << ended.err;
    EXPECT_EQ(names(), std::vector<std::string>{"mixed.safetensors"});
  }
}

TEST_F(GenerateTest, PreviewAndBudgetChangeNoPicture) {
  ASSERT_EQ(generate({"-o", path("a.png")}).status, 0);
  const Ended preview = generate({"--preview", "-o", path("b.png")});
  ASSERT_EQ(preview.status, 0) << preview.err;
  const Ended budget = generate({"--max-memory", "300M", "-o", path("c.png")});
  ASSERT_EQ(budget.status, 0) << budget.err;
  EXPECT_EQ(contents(path("a.png")), contents(path("b.png")));
  EXPECT_EQ(contents(path("a.png")), contents(path("c.png")));
  ASSERT_EQ(generate({"--preview", "--sheet", path("d.png")}).status, 0);
  EXPECT_EQ(names(),
            (std::vector<std::string>{"a.png", "b.png", "c.png", "d.png", "mixed.safetensors"}));
}

TEST_F(GenerateTest, PromptsTimesCount) {
  const Ended many = generate(
      {"--prompt", "a handwritten two", "--seed", "5", "--count", "2", "-o", path("m.png")});
  ASSERT_EQ(many.status, 0) << many.err;
  EXPECT_EQ(names(), (std::vector<std::string>{"m-01.png", "m-02.png", "m-03.png", "m-04.png",
                                               "mixed.safetensors"}));
  ASSERT_EQ(generate({"--seed", "6", "-o", path("one.png")}).status, 0);
  EXPECT_EQ(contents(path("m-02.png")), contents(path("one.png")));
  EXPECT_NE(contents(path("m-04.png")), contents(path("one.png")));
}

// As in downloads whose files lie in a cache.
TEST_F(GenerateTest, AModelFolderOfLinks) {
  std::filesystem::create_directory(path("model"));
  for (const char* part : {"diffusion_models", "text_encoders", "vae", "tokenizer"}) {
    std::filesystem::create_directory(path(std::string("model/") + part));
    for (const auto& entry : std::filesystem::directory_iterator(digits + "/" + part))
      std::filesystem::create_symlink(entry.path(), path(std::string("model/") + part + "/" +
                                                         entry.path().filename().string()));
  }
  std::filesystem::create_directory_symlink(path("model/vae"), path("model/vae/round"));
  const Ended ended =
      parfait({"generate", "--model-dir", path("model"), "--prompt", "a handwritten seven",
               "--width", "64", "--height", "64", "--transformer",
               path("model/diffusion_models/digits_mixed.safetensors"), "-o", path("x.png")});
  EXPECT_EQ(ended.status, 0) << ended.err;
}

}  // namespace
}  // namespace parfait::test
