#include "runtime/threads.h"

#include <algorithm>
#include <system_error>

namespace parfait::runtime {

unsigned thread_count(unsigned asked) {
  if (asked == 0) asked = std::max(1u, std::thread::hardware_concurrency());
  return std::min(asked, 1024u);
}

Threads::Threads(unsigned count) {
  count = thread_count(count);
  for (unsigned thread = 1; thread < count; ++thread) {
    try {
      workers_.emplace_back([this, thread] { wait_for_work(thread); });
    } catch (const std::system_error&) {
      break;  // the system has no more threads to give; results do not depend on their number
    }
  }
}

Threads::~Threads() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void Threads::run(std::uint64_t pieces, const Work& work) {
  if (pieces == 0) return;
  if (workers_.empty() || pieces == 1) {
    for (std::uint64_t piece = 0; piece < pieces; ++piece) work(piece, 0);
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    pieces_ = pieces;
    next_.store(0, std::memory_order_relaxed);
    busy_ = static_cast<unsigned>(workers_.size());
    ++round_;
  }
  start_.notify_all();
  take_pieces(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return busy_ == 0; });
}

void Threads::take_pieces(unsigned thread) {
  for (;;) {
    const std::uint64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
    if (piece >= pieces_) return;
    (*work_)(piece, thread);
  }
}

void Threads::wait_for_work(unsigned thread) {
  std::uint64_t seen = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
    }
    take_pieces(thread);
    const std::lock_guard lock(mutex_);
    if (--busy_ == 0) done_.notify_one();
  }
}

}  // namespace parfait::runtime
