// Proof that a rank's file is what the plan says: sound, and each layer its share.
#ifndef PARFAIT_CONVERT_RANK_CHECK_H_
#define PARFAIT_CONVERT_RANK_CHECK_H_

#include <filesystem>

#include "parfait/plan.h"

namespace parfait::convert {

// Reads headers and markers only.
Result<Done> check_rank(const std::filesystem::path& file, const Plan& plan, std::uint32_t rank,
                        Compat compat);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_RANK_CHECK_H_
