// Text for people: what came from a file, made fit to print, and sizes.
#ifndef PARFAIT_TEXT_H_
#define PARFAIT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace parfait {

// A string that came from a file, fit for a message or a terminal: control characters and invalid
// UTF-8 are escaped, and it is cut at about `most` bytes.
std::string printable(std::string_view text, std::size_t most = 120);

std::string bytes_text(std::uint64_t bytes);  // "19.53 GiB"

}  // namespace parfait

#endif  // PARFAIT_TEXT_H_
