// Work on panels of rows on several threads, which ends early on an error or where the caller's
// progress function asks for it.
#ifndef PARFAIT_CONVERT_PANELS_H_
#define PARFAIT_CONVERT_PANELS_H_

#include <cstdint>
#include <functional>

#include "parfait/error.h"
#include "runtime/threads.h"

namespace parfait::convert {

struct Panels {
  std::uint64_t rows = 0, panel_rows = 1;
  // Of the layer's progress, which part this run is.
  double begin = 0, end = 1;
};

// Calls work(first row, rows, thread) for each panel. Of several errors, the first panel's.
using PanelWork =
    std::function<Result<Done>(std::uint64_t first, std::uint64_t count, unsigned thread)>;
Result<Done> run_panels(runtime::Threads& threads, const Panels& panels,
                        const std::function<bool(double)>& progress, const PanelWork& work);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_PANELS_H_
