// Runs the parfait program and catches what it does; and the small files that it is run on.
#ifndef PARFAIT_TESTS_CLI_PROGRAM_H_
#define PARFAIT_TESTS_CLI_PROGRAM_H_

#include <sys/types.h>

#include <csignal>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/test_file.h"

namespace parfait::test {

struct Ended {
  int status = -1;  // as a shell shows it: 128 + signal for a program that a signal ended
  std::string out, err;
  nlohmann::json json() const;  // of out; a test failure where it is none
};

// A program that was started: stdout and stderr are pipes, or out_path's file.
class Running {
 public:
  // environment: "NAME=value", beside the caller's own.
  explicit Running(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment = {},
                   const std::string& out_path = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }
  // Never to more than that one process: where it could not be started its number is -1, which
  // means every process to kill(2).
  int send(int signal) const { return pid_ > 0 ? ::kill(pid_, signal) : -1; }
  int out() const { return out_; }
  void close_out();
  Ended wait();  // reads what comes until the end

 private:
  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
};

// A file's bytes.
std::string contents(const std::filesystem::path& path);

Ended parfait(const std::vector<std::string>& arguments,
              const std::vector<std::string>& environment = {}, const std::string& out_path = {});
// The same in a process that does something to itself first: limits, another user, system calls
// that fail. Where that is not to be had (prepare gives false), or the program cannot be started
// then, the status is not_prepared.
constexpr int not_prepared = 126;
Ended parfait_prepared(const std::vector<std::string>& arguments,
                       const std::function<bool()>& prepare);
// The same with standard output on a pseudo-terminal; stderr is lost.
Ended parfait_on_terminal(const std::vector<std::string>& arguments,
                          const std::vector<std::string>& environment);

std::size_t lines(const std::string& text);
bool contains(const std::string& text, const std::string& part);

// blocks.0.attn.qkv_proj as convrot_w4a4 and blocks.0.mlp.fc1 as int8_tensorwise, both 3 × 256 and
// rotated by 256; norm.weight as a BF16 vector, and the F32 scalar logit_scale = 1.
TestFile mixed_file();

// A folder with mixed_file() in it.
class CliTest : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
  std::string mixed_ = folder_.write("mixed.safetensors", mixed_file().bytes()).string();
  std::string path(const std::string& name) const { return (folder_.path() / name).string(); }
  std::vector<std::string> names() const;  // of the folder's files, sorted
};

}  // namespace parfait::test

#endif  // PARFAIT_TESTS_CLI_PROGRAM_H_
