// Small helpers for text: glob matching for layer names and human-readable byte counts.
#ifndef PARFAIT_BASE_TEXT_H_
#define PARFAIT_BASE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace parfait {

// Whether the whole of text matches pattern, in which * stands for any run of characters and ? for
// one. Time is at most |text| × |pattern|.
bool glob_match(std::string_view pattern, std::string_view text);

std::string bytes_text(std::uint64_t bytes);  // "19.53 GiB"

}  // namespace parfait

#endif  // PARFAIT_BASE_TEXT_H_
