// A peer is a program beside this one that does the same products, so that both are measured in one
// run. It is started once and speaks lines of text:
//
//   peer    parfait-peer 1 NAME...         names of its methods, without spaces
//   bench   NAME M N K                     prepare if need be, do it once, and time it
//   peer    SECONDS                        or "-" where it cannot
//
// It ends when its input does.
#ifndef PARFAIT_BENCH_PEER_H_
#define PARFAIT_BENCH_PEER_H_

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "bench/contestant.h"

namespace parfait::bench {

class Peer {
 public:
  static Result<Peer> start(const std::string& command);
  Peer(Peer&&) noexcept;
  Peer& operator=(Peer&&) = delete;
  ~Peer();

  const std::vector<std::string>& methods() const { return methods_; }
  double run(const std::string& method, std::uint64_t M, std::uint64_t N, std::uint64_t K);
  // Contestants refer to this object.
  std::vector<Contestant> contestants(std::uint64_t M, std::uint64_t N, std::uint64_t K);

 private:
  Peer() = default;
  int pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::vector<std::string> methods_;
};

}  // namespace parfait::bench

#endif  // PARFAIT_BENCH_PEER_H_
