// Threads that share one piece of work at a time, and wait in between.
//
// One caller at a time may use a Threads object. The work must not throw. What is computed may not
// depend on which thread takes which piece, or on how many there are.
#ifndef PARFAIT_RUNTIME_THREADS_H_
#define PARFAIT_RUNTIME_THREADS_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace parfait::runtime {

// 0: as many as the machine has.
unsigned thread_count(unsigned asked);

class Threads {
 public:
  // count = 0: as many as the machine has. The caller's own thread is one of them.
  explicit Threads(unsigned count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  unsigned count() const { return static_cast<unsigned>(workers_.size()) + 1; }

  // Calls work(piece, thread) for piece = 0 .. pieces - 1, on all threads, and returns when all are
  // done. thread is below count(): an index for scratch.
  using Work = std::function<void(std::uint64_t piece, unsigned thread)>;
  void run(std::uint64_t pieces, const Work& work);

 private:
  void wait_for_work(unsigned thread);
  void take_pieces(unsigned thread);

  std::mutex mutex_;
  std::condition_variable start_, done_;
  std::uint64_t round_ = 0;  // counts the calls of run; guarded by mutex_
  unsigned busy_ = 0;        // workers not yet done with this round; guarded by mutex_
  bool stop_ = false;        // guarded by mutex_
  const Work* work_ = nullptr;
  std::uint64_t pieces_ = 0;
  std::atomic<std::uint64_t> next_{0};
  std::vector<std::thread> workers_;
};

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_THREADS_H_
