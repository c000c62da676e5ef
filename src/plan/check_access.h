// The way to make a CheckedCheckpoint: for the API's check(), once it has found no error, and for
// tests.
#ifndef PARFAIT_PLAN_CHECK_ACCESS_H_
#define PARFAIT_PLAN_CHECK_ACCESS_H_

#include "parfait/checkpoint.h"

namespace parfait {

struct CheckAccess {
  static CheckedCheckpoint make(Checkpoint checkpoint) {
    return CheckedCheckpoint(std::move(checkpoint));
  }
};

}  // namespace parfait

#endif  // PARFAIT_PLAN_CHECK_ACCESS_H_
