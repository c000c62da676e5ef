// The shard index: which file holds which tensor.
#ifndef PARFAIT_CONTAINER_SHARD_INDEX_H_
#define PARFAIT_CONTAINER_SHARD_INDEX_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "parfait/error.h"

namespace parfait::container {

struct ShardIndex {
  std::vector<std::string> files;  // normal paths, each once, in order of first mention
  std::unordered_map<std::string, std::uint32_t> weight_map;  // tensor name -> files[i]
};

inline constexpr std::uint64_t max_index_bytes = 256u << 20;

// Why a file name from a file may not be used below a folder ("leaves the index's folder"); empty
// if it may.
std::string_view shard_name_objection(std::string_view file);

// The text of a *.safetensors.index.json. name stands for it in messages. File names that leave the
// index's folder (absolute, "..", a drive, a backslash) are refused; links are the caller's to
// check.
Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& name);

}  // namespace parfait::container

#endif  // PARFAIT_CONTAINER_SHARD_INDEX_H_
