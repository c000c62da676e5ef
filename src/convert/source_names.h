// What a set of files is to its ranks: the names by which merge() writes them again, and their
// metadata as that of one file.
#ifndef PARFAIT_CONVERT_SOURCE_NAMES_H_
#define PARFAIT_CONVERT_SOURCE_NAMES_H_

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "formats/format.h"

namespace parfait::convert {

struct SourceNames {
  std::filesystem::path index;  // the shard index that names the files; empty where none does
  std::string index_name;
  std::vector<std::string> files;  // by shard; below the index's folder where there is one
};
// opened: the path that was opened.
SourceNames source_names(const formats::Checkpoint& source, const std::filesystem::path& opened);

// The metadata of all files: of a key that several have, the first value, save for the header table
// of markers, whose layers are put together.
Result<std::vector<std::pair<std::string, std::string>>> merged_metadata(
    const formats::Checkpoint& source);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_SOURCE_NAMES_H_
