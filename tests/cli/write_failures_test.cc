// What every verb that writes a checkpoint owes when it cannot: exit 2, one sentence, and all files
// as they were, with none that was not there.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <map>
#include <thread>

#include "cli/program.h"
#include "parfait/parfait.h"

namespace parfait::test {
namespace {

namespace fs = std::filesystem;
using Strings = std::vector<std::string>;

constexpr unsigned nobody = 65534;
// Inside of every output, and behind its header and first layers.
constexpr std::uint32_t room = 40'000;

// Files may not grow beyond the room: a disk that is found to be full when room is reserved, or
// while a file that reserves none grows.
bool limit_files() {
  const rlimit limit{room, room};
  return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
}

// Room may be reserved, but writing behind `room` finds no space: a disk that fills up in the midst
// of the work (file systems that reserve nothing, quotas, thin volumes).
bool fill_disk_midway() {
  // Little-endian: the low half of the offset comes first.
  const auto offset = static_cast<std::uint32_t>(offsetof(seccomp_data, args) + 3 * 8);
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_pwrite64, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offset),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, room, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSPC),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{std::size(filter), filter};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

bool become_nobody() {
  return ::geteuid() != 0 || (::setgid(nobody) == 0 && ::setuid(nobody) == 0);
}

class WriteFailureTest : public CliTest {
 protected:
  // Files lie in "in", and what is written in "out".
  WriteFailureTest() {
    TestFile file;
    for (int i = 0; i < 8; ++i) {
      std::vector<float> values(128 * 256);
      for (std::size_t k = 0; k < values.size(); ++k)
        values[k] = std::sin(static_cast<float>(k * 7 + static_cast<std::size_t>(i)) * 0.37f);
      file.values("blocks." + std::to_string(i) + ".mlp.fc1.weight", DType::bf16, {128, 256},
                  values);
    }
    source_ = folder_.write("in/source.safetensors", file.bytes()).string();
    TestFile broken;
    broken.codes("a.weight", DType::i8, {256, 256});
    broken.floats("a.weight_scale", DType::f32, {256}, 0.5f);
    broken.marker("a", R"({"convrot": true, "convrot_groupsize": 256})");
    broken_ = folder_.write("in/broken.safetensors", broken.bytes()).string();
    fs::create_directory(path("out"));
    const Ended cut = parfait({"shard", source_, "--tp", "2", "-o", path("in/ranks")});
    EXPECT_EQ(cut.status, 0) << cut.err;
  }

  struct Work {
    std::string verb, from;
    Strings options;
    std::string target;  // within a folder
    enum class Makes { file, folder } makes = Makes::file;
    // What begins as a file of its kind does.
    std::string_view old() const { return target.ends_with(".gguf") ? "GGUF" : "\2.......{}"; }
    Strings command(const std::string& folder) const { return to(folder + "/" + target); }
    Strings to(const std::string& path) const {
      Strings all = {verb, from};
      all.insert(all.end(), options.begin(), options.end());
      all.insert(all.end(), {"-o", path});
      return all;
    }
  };
  std::vector<Work> works() const {
    return {
        {"quantize", source_, {"--format", "int8_tensorwise"}, "int8.safetensors"},
        {"quantize", source_, {"--format", "w6a8_int8"}, "w6a8.safetensors"},
        {"convert", source_, {"--to", "int8_tensorwise"}, "converted.safetensors"},
        {"convert", source_, {"--to", "q8_0"}, "converted.gguf"},
        {"convert", source_, {"--max-shard", "150K"}, "set", Work::Makes::folder},
        {"shard", source_, {"--tp", "2"}, "cut", Work::Makes::folder},
        {"merge", path("in/ranks"), {}, "merged.safetensors"},
        {"repair", broken_, {}, "mended.safetensors"},
    };
  }

  // All files, with their bytes.
  std::map<std::string, std::string> files() const {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path()))
      all[entry.path().string()] = entry.is_regular_file() ? contents(entry.path()) : "";
    return all;
  }

  static void expect_refusal(const Ended& ended, const std::string& what) {
    EXPECT_EQ(ended.status, 2) << what << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << what << ended.err;
    // A repair tells its changes before it makes them.
    EXPECT_TRUE(ended.out.empty() || what.starts_with("repair")) << what;
  }

  std::string source_, broken_;
};

TEST_F(WriteFailureTest, All_of_them_work_where_nothing_is_in_the_way) {
  const auto before = files();
  for (const Work& work : works()) {
    const Ended ended = parfait(work.command(path("out")));
    EXPECT_EQ(ended.status, 0) << work.verb << ended.err;
    const std::string made = path("out/" + work.target);
    EXPECT_TRUE(fs::exists(made)) << made;
    if (work.makes == Work::Makes::file) {
      EXPECT_GT(fs::file_size(made), room) << made;
    }
  }
  for (const auto& [name, bytes] : before) {
    if (!fs::is_directory(name)) {
      EXPECT_TRUE(contents(name) == bytes) << name;
    }
  }
}

TEST_F(WriteFailureTest, C14_a_full_disk_leaves_everything_as_it_was) {
  for (const Work& work : works())
    if (work.makes == Work::Makes::file) folder_.write("out/" + work.target, work.old());
  const auto before = files();
  for (const Work& work : works()) {
    const Ended ended = parfait_prepared(work.command(path("out")), limit_files);
    ASSERT_NE(ended.status, not_prepared);
    expect_refusal(ended, work.verb);
    EXPECT_TRUE(contains(ended.err, "File too large")) << ended.err;
    EXPECT_TRUE(files() == before) << work.verb;
  }
}

TEST_F(WriteFailureTest, C14_a_disk_that_fills_up_midway_leaves_everything_as_it_was) {
  for (const Work& work : works())
    if (work.makes == Work::Makes::file) folder_.write("out/" + work.target, work.old());
  const auto before = files();
  for (const Work& work : works()) {
    if (work.verb != "quantize" && work.verb != "convert") continue;  // the others append
    for (const bool resume : {false, true}) {
      Strings command = work.command(path("out"));
      if (resume) command.emplace_back("--resume");
      const Ended ended = parfait_prepared(command, fill_disk_midway);
      if (ended.status == not_prepared) GTEST_SKIP() << "no filter of system calls is to be had";
      if (work.verb == "quantize" && resume) {
        // What was written is kept, and named.
        EXPECT_EQ(ended.status, 2);
        EXPECT_TRUE(contains(ended.err, ".partial stays")) << ended.err;
        EXPECT_TRUE(contains(ended.err, "No space left")) << ended.err;
        EXPECT_EQ(contents(path("out/" + work.target)), work.old());
        const Ended again = parfait(command);
        EXPECT_EQ(again.status, 0) << again.err;
        folder_.write("out/" + work.target, work.old());
      } else {
        expect_refusal(ended, work.verb);
        EXPECT_TRUE(contains(ended.err, "No space left")) << ended.err;
      }
      EXPECT_TRUE(files() == before) << work.verb;
    }
  }
}

TEST_F(WriteFailureTest, A_repair_in_place_on_a_full_disk_leaves_the_file) {
  const auto before = files();
  const Ended ended = parfait_prepared({"repair", broken_, "--write"}, [] {
    // The journal finds no room.
    const rlimit limit{64, 64};
    return ::setrlimit(RLIMIT_FSIZE, &limit) == 0;
  });
  ASSERT_NE(ended.status, not_prepared);
  EXPECT_EQ(ended.status, 2) << ended.err;
  EXPECT_EQ(lines(ended.err), 1u) << ended.err;
  EXPECT_TRUE(files() == before);
}

TEST_F(WriteFailureTest, C14_a_folder_that_may_not_be_written_to) {
  fs::permissions(folder_.path(), fs::perms(0755));
  fs::permissions(path("out"), fs::perms(0555));
  if (parfait_prepared({"--version"}, become_nobody).status != 0)
    GTEST_SKIP() << "another user cannot start the program here";
  const auto before = files();
  for (const Work& work : works()) {
    const Ended ended = parfait_prepared(work.command(path("out")), become_nobody);
    expect_refusal(ended, work.verb);
    EXPECT_TRUE(contains(ended.err, "cannot be created: Permission denied")) << ended.err;
    EXPECT_TRUE(files() == before) << work.verb;
  }
  if (::geteuid() == 0) {
    // Mended in place, the file itself must be writable.
    const Ended ended = parfait_prepared({"repair", broken_, "--write"}, become_nobody);
    EXPECT_EQ(ended.status, 2) << ended.err;
    EXPECT_EQ(lines(ended.err), 1u) << ended.err;
    EXPECT_TRUE(files() == before);
  }
  fs::permissions(path("out"), fs::perms(0755));
}

TEST_F(WriteFailureTest, C14_no_verb_writes_over_its_source) {
  const std::string rank = path("in/ranks/rank_00_of_02.safetensors");
  int number = 0;
  for (const Work& work : works()) {
    const std::string source = work.verb == "merge" ? rank : work.from;
    const std::string name = "out/same" + std::to_string(number++);
    fs::create_symlink(source, path(name + "-symlink"));
    fs::create_hard_link(source, path(name + "-hardlink"));
    const auto before = files();
    for (const std::string& target :
         {source, path(name + "-symlink"), path(name + "-hardlink"),
          // By another way to the same folder.
          (fs::path(source).parent_path() / "." / fs::path(source).filename()).string()}) {
      const Ended ended = parfait(work.to(target));
      expect_refusal(ended, work.verb + " " + target + ": ");
      EXPECT_TRUE(contains(ended.err, "is the input file") || contains(ended.err, "is an input") ||
                  contains(ended.err, "is a file"))
          << ended.err;
      EXPECT_TRUE(files() == before) << work.verb << " " << target;
    }
  }
}

// A slip of the hand: the name of a recipe, a tokenizer, a picture.
TEST_F(WriteFailureTest, No_verb_replaces_a_file_of_another_kind) {
  for (const Work& work : works()) {
    if (work.makes == Work::Makes::folder) continue;
    const std::string target = path("out/" + work.target);
    for (const std::string old :
         {"x", R"({"version": "1.0", "model": {}})", "\x89PNG\r\n\x1a\n...."}) {
      folder_.write("out/" + work.target, std::string_view(old));
      const auto before = files();
      const Ended ended = parfait(work.to(target));
      expect_refusal(ended, work.verb + " " + target + ": ");
      EXPECT_TRUE(contains(ended.err, "so it is not replaced")) << ended.err;
      EXPECT_TRUE(files() == before) << work.verb;
    }
    // An empty one, as mktemp makes it, and one of its own kind.
    folder_.write("out/" + work.target, std::string_view(""));
    for (int i = 0; i < 2; ++i) {
      const Ended ended = parfait(work.to(target));
      EXPECT_EQ(ended.status, 0) << work.verb << ended.err;
      EXPECT_GT(fs::file_size(target), room);
    }
  }
}

TEST_F(WriteFailureTest, A_page_takes_no_other_files_place) {
  const std::string out = path("out/int8.safetensors"), page = path("out/page.html");
  const auto quantize = [&](const std::string& html) {
    return parfait({"quantize", source_, "--format", "int8_tensorwise", "-o", out, "--html", html});
  };
  folder_.write("out/recipe.txt", std::string_view("* keep\n"));
  const auto before = files();
  for (const std::string& html :
       {source_, path("out/recipe.txt"), out, path("out/./int8.safetensors"), path("out"),
        path("absent/page.html")}) {
    const Ended ended = quantize(html);
    expect_refusal(ended, html + ": ");
    EXPECT_TRUE(files() == before) << html;
  }
  for (int i = 0; i < 2; ++i) EXPECT_EQ(quantize(page).status, 0);
  EXPECT_TRUE(contents(page).starts_with("<!DOCTYPE html"));
}

// Work of some length, so that it can be ended in its midst.
class EndedMidwayTest : public CliTest {
 protected:
  EndedMidwayTest() {
    TestFile file;
    for (int i = 0; i < 24; ++i)
      file.floats("blocks." + std::to_string(i) + ".mlp.fc1.weight", DType::bf16, {512, 1024},
                  0.01f * static_cast<float>(i + 1));
    source_ = folder_.write("source.safetensors", file.bytes()).string();
    before_ = contents(source_);
    std::filesystem::remove(mixed_);
  }

  // Until f holds; a test failure after half a minute.
  template <class F>
  static bool wait_until(F&& f) {
    for (int i = 0; i < 30'000; ++i) {
      if (f()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ADD_FAILURE() << "waited in vain";
    return false;
  }
  bool any_partial() const {
    for (const std::string& name : names())
      if (contains(name, ".partial")) return true;
    return false;
  }

  std::string source_, before_;
};

TEST_F(EndedMidwayTest, With_resume_Ctrl_C_leaves_what_was_done_and_says_so) {
  for (const Strings& work :
       {Strings{"quantize", "--format", "w6a8_int8"}, Strings{"convert", "--to", "w6a8_int8"}}) {
    const std::string out = path(work[0] + ".safetensors"), whole = path(work[0] + "-whole");
    Strings command = {work[0], source_,    work[1],  work[2], "--threads",
                       "1",     "--resume", "--json", "-o"};  // fmt: skip
    const auto to = [&](const std::string& target) {
      Strings all = command;
      all.push_back(target);
      return all;
    };
    {
      Running running(to(out));
      // Fingerprint, boot and two layers.
      wait_until([&] { return lines(contents(out + ".partial.journal")) >= 4; });
      running.send(SIGINT);
      const Ended ended = running.wait();
      ASSERT_EQ(ended.status, 128 + SIGINT) << ended.err;
    }
    EXPECT_FALSE(std::filesystem::exists(out));
    // Synced before it was left.
    EXPECT_TRUE(contains(contents(out + ".partial.journal"), "#synced "));
    EXPECT_EQ(contents(source_), before_);
    ASSERT_EQ(parfait(to(out)).status, 0);
    ASSERT_EQ(parfait(to(whole)).status, 0);
    EXPECT_TRUE(contents(out) == contents(whole)) << work[0];
    EXPECT_FALSE(any_partial());
  }
}

TEST_F(EndedMidwayTest, A_killed_shard_set_is_resumed) {
  const auto command = [&](const std::string& out) {
    return Strings{"convert",     source_, "--to",     "w6a8_int8", "--threads", "1",
                   "--max-shard", "3M",    "--resume", "--json",    "-o",        out};  // fmt: skip
  };
  const std::string out = path("set"), whole = path("whole");
  ASSERT_EQ(parfait(command(whole)).status, 0);
  {
    Running running(command(out));
    wait_until([&] {
      for (const auto& entry : std::filesystem::directory_iterator(whole)) {
        const std::string name = entry.path().filename().string();
        if (lines(contents(out + ".partial/" + name + ".partial.journal")) >= 4) return true;
      }
      return false;
    });
    running.send(SIGKILL);
    ASSERT_EQ(running.wait().status, 128 + SIGKILL);
  }
  EXPECT_FALSE(std::filesystem::exists(out));
  const Ended resumed = parfait(command(out));
  ASSERT_EQ(resumed.status, 0) << resumed.err;
  EXPECT_GE(resumed.json()["resumed"], 2);
  for (const auto& entry : std::filesystem::directory_iterator(whole))
    EXPECT_TRUE(contents(entry.path()) == contents(out + "/" + entry.path().filename().string()));
  EXPECT_FALSE(any_partial());
}

TEST_F(EndedMidwayTest, A_killed_shard_or_merge_leaves_its_source_and_can_be_run_again) {
  for (const int signal : {SIGINT, SIGKILL}) {
    Strings command = {"shard", source_, "--tp", "2", "-o", path("ranks")};
    {
      Running running(command);
      wait_until([&] { return any_partial() || std::filesystem::exists(path("ranks")); });
      running.send(signal);
      const Ended ended = running.wait();
      ASSERT_TRUE(ended.status == 128 + signal || ended.status == 0) << ended.err;
      EXPECT_EQ(std::filesystem::exists(path("ranks")), ended.status == 0);
      EXPECT_FALSE(signal == SIGINT && any_partial());
    }
    EXPECT_EQ(contents(source_), before_);
    if (signal == SIGKILL) command.push_back("--resume");
    ASSERT_EQ(parfait(command).status, 0);
    EXPECT_FALSE(any_partial());
    Strings join = {"merge", path("ranks"), "-o", path("merged")};
    {
      Running running(join);
      wait_until([&] {
        for (const std::string& name : names())
          if (name.starts_with("merged")) return true;
        return false;
      });
      running.send(signal);
      const Ended ended = running.wait();
      ASSERT_TRUE(ended.status == 128 + signal || ended.status == 0) << ended.err;
      EXPECT_EQ(std::filesystem::exists(path("merged")), ended.status == 0);
    }
    if (signal == SIGKILL) join.push_back("--resume");
    ASSERT_EQ(parfait(join).status, 0);
    EXPECT_TRUE(contents(path("merged")) == before_);
    EXPECT_FALSE(any_partial());
    std::filesystem::remove_all(path("ranks"));
    std::filesystem::remove_all(path("merged"));
  }
}

}  // namespace
}  // namespace parfait::test
