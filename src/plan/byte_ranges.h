// Which bytes of its files a rank reads for a layer.
#ifndef PARFAIT_PLAN_BYTE_RANGES_H_
#define PARFAIT_PLAN_BYTE_RANGES_H_

#include <vector>

#include "formats/format.h"
#include "parfait/plan.h"

namespace parfait::plan {

// In file order, touching ranges joined. What a rank cannot take a part of it reads whole: scalars,
// codebooks, markers, and the swizzled block scales of a layer cut by outputs, whose tiles of 128
// rows rarely end where a share does. The bias of a layer cut by inputs is the first rank's.
std::vector<ByteRange> byte_ranges(const formats::Layer& layer, const LayerPlan& plan,
                                   std::uint32_t rank);

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_BYTE_RANGES_H_
