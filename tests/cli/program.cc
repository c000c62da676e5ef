#include "cli/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "support/file_text.h"

extern char** environ;

namespace parfait::test {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> list;
  for (std::string& s : strings) list.push_back(s.data());
  list.push_back(nullptr);
  return list;
}

// Starts the program with these streams as its 1 and 2.
pid_t spawn(const std::vector<std::string>& arguments, const std::vector<std::string>& environment,
            int out, int err) {
  std::vector<std::string> words = {PARFAIT_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = environment;
  for (char** variable = environ; *variable; ++variable) {
    const std::string text = *variable;
    const bool replaced = std::ranges::any_of(environment, [&](const std::string& given) {
      return text.starts_with(given.substr(0, given.find('=') + 1));
    });
    if (!replaced && !text.starts_with("PARFAIT_ISA=")) variables.push_back(text);
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out, 1);
  posix_spawn_file_actions_adddup2(&actions, err, 2);
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, PARFAIT_PROGRAM, &actions, nullptr, pointers(words).data(),
                          pointers(variables).data()),
            0);
  posix_spawn_file_actions_destroy(&actions);
  return pid;
}

void make_pipe(int ends[2]) { ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0); }

int wait_for(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

// Reads once; false at the end.
bool read_some(int fd, std::string& text) {
  char piece[1 << 14];
  const ssize_t count = ::read(fd, piece, sizeof piece);
  if (count < 0 && errno == EINTR) return true;
  if (count <= 0) return false;
  text.append(piece, static_cast<std::size_t>(count));
  return true;
}

}  // namespace

nlohmann::json Ended::json() const {
  nlohmann::json parsed = nlohmann::json::parse(out, nullptr, false);
  EXPECT_FALSE(parsed.is_discarded()) << out;
  return parsed;
}

Running::Running(const std::vector<std::string>& arguments,
                 const std::vector<std::string>& environment, const std::string& out_path) {
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  make_pipe(err);
  if (out_path.empty())
    make_pipe(out);
  else
    out[1] = ::open(out_path.c_str(), O_WRONLY | O_CLOEXEC);
  pid_ = spawn(arguments, environment, out[1], err[1]);
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

Running::~Running() {
  close_out();
  if (err_ >= 0) ::close(err_);
  if (pid_ > 0) wait_for(pid_);
}

void Running::close_out() {
  if (out_ >= 0) ::close(out_);
  out_ = -1;
}

Ended Running::wait() {
  Ended ended;
  while (out_ >= 0 || err_ >= 0) {
    pollfd ready[2] = {{out_, POLLIN, 0}, {err_, POLLIN, 0}};
    if (::poll(ready, 2, -1) < 0) continue;
    if (ready[0].revents && !read_some(out_, ended.out)) close_out();
    if (ready[1].revents && !read_some(err_, ended.err)) {
      ::close(err_);
      err_ = -1;
    }
  }
  ended.status = wait_for(pid_);
  pid_ = -1;
  return ended;
}

Ended parfait(const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment, const std::string& out_path) {
  return Running(arguments, environment, out_path).wait();
}

std::string contents(const std::filesystem::path& path) { return file_text(path); }

Ended parfait_prepared(const std::vector<std::string>& arguments,
                       const std::function<bool()>& prepare) {
  std::vector<std::string> words = {PARFAIT_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  const std::vector<char*> list = pointers(words);
  Ended ended;
  int out[2] = {-1, -1}, err[2] = {-1, -1};
  make_pipe(out);
  make_pipe(err);
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(out[1], 1);
    ::dup2(err[1], 2);
    if (prepare()) ::execv(PARFAIT_PROGRAM, list.data());
    ::_exit(not_prepared);
  }
  ::close(out[1]);
  ::close(err[1]);
  EXPECT_GT(pid, 0);
  // Its answers are short: neither pipe is filled while the other is read.
  while (read_some(err[0], ended.err)) {
  }
  while (read_some(out[0], ended.out)) {
  }
  ::close(out[0]);
  ::close(err[0]);
  if (pid > 0) ended.status = wait_for(pid);
  return ended;
}

Ended parfait_on_terminal(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment) {
  Ended ended;
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return ended;
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
  const int lost = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  const pid_t pid = spawn(arguments, environment, terminal, lost);
  ::close(terminal);
  ::close(lost);
  while (read_some(master, ended.out)) {
  }
  ::close(master);
  ended.status = wait_for(pid);
  return ended;
}

std::size_t lines(const std::string& text) {
  return static_cast<std::size_t>(std::ranges::count(text, '\n'));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TestFile mixed_file() {
  TestFile file;
  file.metadata("made_by", "tests");
  file.codes("blocks.0.attn.qkv_proj.weight", DType::i8, {3, 128});
  file.floats("blocks.0.attn.qkv_proj.weight_scale", DType::f32, {3}, 0.02f);
  file.marker("blocks.0.attn.qkv_proj", R"({"format": "convrot_w4a4", "convrot_groupsize": 256})");
  file.codes("blocks.0.mlp.fc1.weight", DType::i8, {3, 256});
  file.floats("blocks.0.mlp.fc1.weight_scale", DType::f32, {3, 1}, 0.01f);
  file.floats("blocks.0.mlp.fc1.bias", DType::bf16, {3}, 0.5f);
  file.marker("blocks.0.mlp.fc1",
              R"({"format": "int8_tensorwise", "convrot": true, "convrot_groupsize": 256})");
  file.floats("norm.weight", DType::bf16, {256}, 1.0f);
  file.floats("logit_scale", DType::f32, {}, 1.0f);
  return file;
}

std::vector<std::string> CliTest::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

}  // namespace parfait::test
