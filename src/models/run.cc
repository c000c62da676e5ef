#include "models/run.h"

#include "base/result.h"

namespace parfait::models {

Result<Done> Run::check_stop() const {
  if (stop_ && stop_()) return make_error(ErrorCode::cancelled, "the work was cancelled");
  return Done{};
}

Result<Done> Run::enter(std::size_t block) {
  PARFAIT_CHECK_OK(check_stop());
  return timed(OpKind::loading, [&] { return weights_->enter(block); });
}

}  // namespace parfait::models
