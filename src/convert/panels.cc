#include "convert/panels.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>

#include "base/checked.h"

namespace parfait::convert {

Result<Done> run_panels(runtime::Threads& threads, const Panels& panels,
                        const std::function<bool(double)>& progress, const PanelWork& work) {
  const std::uint64_t count = ceil_div(panels.rows, panels.panel_rows);
  std::atomic<bool> stop{false};
  std::atomic<std::uint64_t> done{0};
  std::mutex mutex;
  std::optional<Error> error;  // guarded by mutex
  std::uint64_t failed = 0;    // the panel that it is of; guarded by mutex
  threads.run(count, [&](std::uint64_t piece, unsigned thread) {
    if (stop.load(std::memory_order_relaxed)) return;
    const std::uint64_t first = piece * panels.panel_rows;
    Result<Done> result = work(first, std::min(panels.panel_rows, panels.rows - first), thread);
    const std::uint64_t so_far = done.fetch_add(1, std::memory_order_relaxed) + 1;
    // Thread 0 is the caller's.
    if (result.ok() && thread == 0 && progress) {
      const double share = static_cast<double>(so_far) / static_cast<double>(count);
      if (!progress(panels.begin + (panels.end - panels.begin) * share))
        result = Error{ErrorCode::cancelled, "cancelled"};
    }
    if (result.ok()) return;
    stop.store(true, std::memory_order_relaxed);
    const std::lock_guard lock(mutex);
    if (!error || piece < failed) {
      error = std::move(result).error();
      failed = piece;
    }
  });
  if (error) return *std::move(error);
  return Done{};
}

}  // namespace parfait::convert
