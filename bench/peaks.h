// What this machine does at best: loops that stay in registers, and streams through memory.
#ifndef PARFAIT_BENCH_PEAKS_H_
#define PARFAIT_BENCH_PEAKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/threads.h"

namespace parfait::bench {

// A loop of independent instructions: operations(rounds) says how many operations it did.
struct Loop {
  void (*run)(std::uint64_t rounds) = nullptr;
  double operations_a_round = 0;
};
// The best that this processor has; run is null where it has none.
Loop vnni_loop();
Loop bf16_loop();
Loop f32_loop();

// 1e9 operations a second of all threads together; 0 where there is no such loop.
double measure_loop(const Loop& loop, runtime::Threads& pool);

// Streams through buffers that are many times a last-level cache.
class Streams {
 public:
  explicit Streams(std::size_t bytes);
  double read(runtime::Threads& pool);  // 1e9 bytes a second
  double copy(runtime::Threads& pool);  // 1e9 copied bytes a second

 private:
  std::vector<std::byte> from_, to_;
  std::vector<std::uint64_t> sums_;
};

// In peaks_x86.cc.
std::uint64_t read_bytes(const std::byte* from, std::size_t size);

}  // namespace parfait::bench

#endif  // PARFAIT_BENCH_PEAKS_H_
