#include "bench/peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <sstream>
#include <utility>

extern char** environ;

namespace parfait::bench {
namespace {

std::string read_line(std::FILE* from) {
  std::string line;
  for (int c; (c = std::getc(from)) != EOF && c != '\n';) {
    line += static_cast<char>(c);
    if (line.size() > 4096) break;
  }
  return line;
}

}  // namespace

Result<Peer> Peer::start(const std::string& command) {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0)
    return make_error(ErrorCode::bench_peer, "peer {}: {}", printable(command),
                      std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  const char* arguments[] = {"sh", "-c", command.c_str(), nullptr};
  Peer peer;
  const int failed =
      posix_spawn(&peer.pid_, "/bin/sh", &actions, nullptr, const_cast<char**>(arguments), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  if (failed != 0) {
    peer.pid_ = -1;
    close(in[1]);
    close(out[0]);
    return make_error(ErrorCode::bench_peer, "peer {}: {}", printable(command),
                      std::strerror(failed));
  }
  peer.to_ = fdopen(in[1], "w");
  peer.from_ = fdopen(out[0], "r");
  std::istringstream words(read_line(peer.from_));
  std::string hello, version;
  words >> hello >> version;
  if (hello != "parfait-peer" || version != "1")
    return make_error(ErrorCode::bench_peer,
                      "peer {}: its first line is not \"parfait-peer 1 NAME...\"",
                      printable(command));
  for (std::string name; words >> name;) peer.methods_.push_back(name);
  return peer;
}

Peer::Peer(Peer&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      to_(std::exchange(other.to_, nullptr)),
      from_(std::exchange(other.from_, nullptr)),
      methods_(std::move(other.methods_)) {}

Peer::~Peer() {
  if (to_) std::fclose(to_);
  if (from_) std::fclose(from_);
  if (pid_ > 0) waitpid(pid_, nullptr, 0);
}

double Peer::run(const std::string& method, std::uint64_t M, std::uint64_t N, std::uint64_t K) {
  if (std::fprintf(to_, "%s %llu %llu %llu\n", method.c_str(), static_cast<unsigned long long>(M),
                   static_cast<unsigned long long>(N), static_cast<unsigned long long>(K)) < 0 ||
      std::fflush(to_) != 0)
    return -1;
  const std::string line = read_line(from_);
  double seconds = -1;
  std::from_chars(line.data(), line.data() + line.size(), seconds);
  return seconds;
}

std::vector<Contestant> Peer::contestants(std::uint64_t M, std::uint64_t N, std::uint64_t K) {
  std::vector<Contestant> all;
  for (const std::string& method : methods_)
    all.push_back({method, "peer",
                   method.find("bf16") != std::string::npos ? Unit::bf16 : Unit::vnni, 0,
                   [this, method, M, N, K] { return run(method, M, N, K); }});
  return all;
}

}  // namespace parfait::bench
