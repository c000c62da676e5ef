// Small helpers for text: glob matching and near misses of layer names.
#ifndef PARFAIT_BASE_TEXT_H_
#define PARFAIT_BASE_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "parfait/text.h"

namespace parfait {

// Whether the whole of text matches pattern, in which * stands for any run of characters and ? for
// one. Time is at most |text| × |pattern|.
bool glob_match(std::string_view pattern, std::string_view text);

// The candidate with the smallest edit distance to name, if it is close enough to be a slip; else
// empty. Candidates beyond the first 100,000 are not looked at.
std::string nearest_name(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace parfait

#endif  // PARFAIT_BASE_TEXT_H_
