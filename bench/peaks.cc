#include "bench/peaks.h"

#include <chrono>
#include <cstring>

namespace parfait::bench {

namespace {
using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
}  // namespace

double measure_loop(const Loop& loop, runtime::Threads& pool) {
  if (!loop.run) return 0;
  constexpr std::uint64_t rounds = 100'000;
  const auto start = Clock::now();
  pool.run(pool.count(), [&](std::uint64_t, unsigned) { loop.run(rounds); });
  return pool.count() * loop.operations_a_round * rounds / seconds_since(start) / 1e9;
}

Streams::Streams(std::size_t bytes) : from_(bytes, std::byte{1}), to_(bytes, std::byte{2}) {}

double Streams::read(runtime::Threads& pool) {
  const std::size_t part = from_.size() / pool.count() / 4096 * 4096;
  sums_.assign(pool.count(), 0);
  const auto start = Clock::now();
  pool.run(pool.count(), [&](std::uint64_t piece, unsigned) {
    sums_[piece] = read_bytes(from_.data() + piece * part, part);
  });
  return static_cast<double>(part * pool.count()) / seconds_since(start) / 1e9;
}

double Streams::copy(runtime::Threads& pool) {
  const std::size_t part = from_.size() / pool.count() / 4096 * 4096;
  const auto start = Clock::now();
  pool.run(pool.count(), [&](std::uint64_t piece, unsigned) {
    std::memcpy(to_.data() + piece * part, from_.data() + piece * part, part);
  });
  return static_cast<double>(part * pool.count()) / seconds_since(start) / 1e9;
}

}  // namespace parfait::bench
