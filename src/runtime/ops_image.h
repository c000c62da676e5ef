// The operations on images behind parfait/ops.h but for convolution: arguments checked, kernels
// chosen, pixels split over threads.
#ifndef PARFAIT_RUNTIME_OPS_IMAGE_H_
#define PARFAIT_RUNTIME_OPS_IMAGE_H_

#include "parfait/ops.h"

namespace parfait::runtime {

// Throws std::bad_alloc, before it writes.
Result<Done> group_norm(Ops& ops, const ConstMatrix& x, const GroupNormOptions& options,
                        const Matrix& y);
Result<Done> upsample_nearest(Ops& ops, const ConstMatrix& x, const ImageSize& size,
                              std::uint64_t factor, const Matrix& y);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_IMAGE_H_
