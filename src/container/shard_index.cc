#include "container/shard_index.h"

#include <algorithm>
#include <filesystem>

#include "base/result.h"
#include "io/json.h"

namespace parfait::container {

std::string_view shard_name_objection(std::string_view file) {
  if (file.empty()) return "is empty";
  if (file.find('\0') != std::string_view::npos) return "has a NUL in it";
  if (file.front() == '/') return "is an absolute path";
  if (file.find('\\') != std::string_view::npos) return "has a backslash in it";
  if (file.size() > 1 && file[1] == ':') return "names a drive";
  for (std::size_t begin = 0; begin <= file.size();) {
    const std::size_t end = std::min(file.find('/', begin), file.size());
    if (file.substr(begin, end - begin) == "..") return "leaves the index's folder";
    begin = end + 1;
  }
  return {};
}

Result<ShardIndex> parse_shard_index(std::string_view text, const std::string& name) {
  auto json = io::parse_json(text, {.max_bytes = max_index_bytes, .max_depth = 8});
  if (!json)
    return make_error(ErrorCode::index_json, "{}: the shard index is not valid JSON: {}", name,
                      json.error().message);
  const io::Json* map = json->find("weight_map");
  if (!map || !map->object())
    return make_error(ErrorCode::index_json, "{}: the shard index has no object \"weight_map\"",
                      name);
  ShardIndex index;
  index.weight_map.reserve(map->object()->size());
  std::unordered_map<std::string_view, std::uint32_t> by_spelling;
  std::unordered_map<std::string, std::uint32_t> by_path;  // "./a" and "a" are one file
  for (const auto& [tensor, file] : *map->object()) {
    const std::string* path = file.string();
    if (!path)
      return make_error(ErrorCode::index_json,
                        "{}: the shard index gives tensor {} no file name but {}", name,
                        printable(tensor), printable(file.text()));
    const auto [spelling, unseen] = by_spelling.try_emplace(*path);
    if (unseen) {
      if (const std::string_view why = shard_name_objection(*path); !why.empty())
        return make_error(ErrorCode::index_path, "{}: the shard name \"{}\" (of tensor {}) {}",
                          name, printable(*path), printable(tensor), why);
      const auto [it, added] =
          by_path.try_emplace(std::filesystem::path(*path).lexically_normal().string(),
                              static_cast<std::uint32_t>(index.files.size()));
      if (added) index.files.push_back(it->first);
      spelling->second = it->second;
    }
    index.weight_map.emplace(tensor, spelling->second);
  }
  if (index.files.empty())
    return make_error(ErrorCode::index_json, "{}: the shard index lists no tensor", name);
  return index;
}

}  // namespace parfait::container
