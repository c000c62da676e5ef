// The fork-join pool. Run under TSan too: make test-tsan.

#include "runtime/threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

namespace parfait::runtime {
namespace {

TEST(Threads, none_asked_for_means_as_many_as_the_machine_has) {
  EXPECT_EQ(Threads(0).count(), std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(Threads(1).count(), 1u);
  EXPECT_EQ(Threads(5).count(), 5u);
}

TEST(Threads, every_piece_is_done_once_and_before_run_returns) {
  for (unsigned count : {1u, 2u, 3u, 8u}) {
    Threads pool(count);
    for (std::uint64_t pieces : {0u, 1u, 2u, 7u, 8u, 1000u}) {
      std::vector<int> done(pieces, 0);  // plain: each piece is written by one thread only
      pool.run(pieces, [&](std::uint64_t piece, unsigned thread) {
        EXPECT_LT(thread, pool.count());
        ++done[piece];
      });
      EXPECT_EQ(std::count(done.begin(), done.end(), 1), static_cast<std::ptrdiff_t>(pieces));
    }
  }
}

TEST(Threads, what_one_run_wrote_the_next_one_reads) {
  Threads pool(4);
  std::vector<std::uint64_t> values(64, 1);
  for (int round = 0; round < 200; ++round)  // each round reads what other threads wrote before
    pool.run(values.size(), [&, before = values](std::uint64_t piece, unsigned) {
      values[piece] = before[piece] + before[(piece + 1) % before.size()] % 3;
    });
  std::vector<std::uint64_t> expected(64, 1);
  for (int round = 0; round < 200; ++round) {
    const std::vector<std::uint64_t> before = expected;
    for (std::size_t i = 0; i < 64; ++i) expected[i] = before[i] + before[(i + 1) % 64] % 3;
  }
  EXPECT_EQ(values, expected);
}

// The index of the thread picks its scratch: no two pieces may hold the same one at once.
TEST(Threads, scratch_by_thread_is_not_shared) {
  Threads pool(3);
  std::vector<std::vector<int>> scratch(pool.count());
  std::atomic<std::uint64_t> wrong{0};
  pool.run(500, [&](std::uint64_t piece, unsigned thread) {
    std::vector<int>& mine = scratch[thread];
    mine.assign(64, static_cast<int>(piece));
    if (std::accumulate(mine.begin(), mine.end(), 0) != 64 * static_cast<int>(piece)) ++wrong;
  });
  EXPECT_EQ(wrong.load(), 0u);
}

TEST(Threads, a_pool_that_was_never_used_ends) {
  for (int i = 0; i < 20; ++i) Threads pool(4);
}

}  // namespace
}  // namespace parfait::runtime
