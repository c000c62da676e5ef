// Writes PNG files.
#ifndef PARFAIT_PIPELINE_PNG_H_
#define PARFAIT_PIPELINE_PNG_H_

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "parfait/generate.h"

namespace parfait::pipeline {

// Texts are Latin-1 tEXt where they can be, else UTF-8 iTXt.
Result<std::vector<std::byte>> encode_png(
    const Picture& picture, std::span<const std::pair<std::string, std::string>> texts);

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_PNG_H_
