#include "convert/source_names.h"

#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/result.h"
#include "container/shard_index.h"
#include "io/json.h"

namespace parfait::convert {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view index_extension = ".safetensors.index.json";
constexpr std::string_view table_key = "_quantization_metadata";

bool is_index(const fs::path& path) { return path.filename().string().ends_with(index_extension); }

// The index by which these files were opened, if one was.
fs::path index_of(const fs::path& opened) {
  std::error_code error;
  if (is_index(opened)) return opened;
  if (fs::is_directory(opened, error)) {
    std::vector<fs::path> indexes;
    for (fs::directory_iterator it(opened, error), end; !error && it != end; it.increment(error))
      if (is_index(it->path()) && fs::is_regular_file(it->path(), error))
        indexes.push_back(it->path());
    return indexes.size() == 1 ? indexes.front() : fs::path();
  }
  // One file of a numbered set: model-00001-of-00003.safetensors has model's index beside it.
  const std::string name = opened.filename().string();
  const std::size_t of = name.rfind("-of-");
  const std::size_t dash = of == std::string::npos || of == 0 ? of : name.rfind('-', of - 1);
  if (dash == std::string::npos || of == 0) return {};
  const fs::path index =
      opened.parent_path() / (name.substr(0, dash) + std::string(index_extension));
  return fs::is_regular_file(index, error) ? index : fs::path();
}

// A file's name as the manifest may have it.
std::string plain_name(const fs::path& path) {
  std::string name = printable(path.filename().string(), 255);
  std::ranges::replace(name, '\\', '_');
  return container::shard_name_objection(name).empty() ? name : "source.safetensors";
}

}  // namespace

SourceNames source_names(const formats::Checkpoint& source, const fs::path& opened) {
  SourceNames names;
  const auto shards = source.index->shards();
  if (!opened.empty()) names.index = index_of(opened);
  const fs::path folder = names.index.parent_path();
  std::unordered_set<std::string> seen;
  for (const container::Shard& shard : shards) {
    const fs::path path = shard.reader->name();
    std::string name = plain_name(path);
    if (!names.index.empty()) {
      const std::string below = path.lexically_relative(folder.empty() ? "." : folder).string();
      const std::string direct = folder.empty() ? path.lexically_normal().string() : below;
      if (container::shard_name_objection(direct).empty()) name = direct;
    }
    for (int i = 2; !seen.insert(name).second; ++i)
      name = fmt::format("{}-{}", i, plain_name(path));
    names.files.push_back(std::move(name));
  }
  if (!names.index.empty()) names.index_name = plain_name(names.index);
  return names;
}

Result<std::vector<std::pair<std::string, std::string>>> merged_metadata(
    const formats::Checkpoint& source) {
  std::vector<std::pair<std::string, std::string>> metadata;
  std::unordered_map<std::string, std::size_t> at;
  io::Json::Object layers;  // of all tables
  std::unordered_set<std::string> names;
  bool several = false;
  for (const container::Shard& shard : source.index->shards()) {
    for (const auto& [key, value] : shard.metadata) {
      const auto [it, added] = at.try_emplace(key, metadata.size());
      if (added) metadata.emplace_back(key, value);
      if (key != table_key || source.index->shards().size() == 1) continue;
      several |= !added;
      auto table = io::parse_json(value, {.max_bytes = value.size() + 1, .max_depth = 32});
      const io::Json* found = table.ok() ? table->find("layers") : nullptr;
      if (!found || !found->object())
        return make_error(ErrorCode::marker_json, "{}: its header table cannot be read",
                          printable(shard.reader->name(), 1000));
      for (const auto& [layer, marker] : *found->object())
        if (names.insert(layer).second) layers.emplace_back(layer, marker);
    }
  }
  if (several) {
    io::Json::Object table;
    table.emplace_back("format_version", io::Json(std::string("1.0")));
    table.emplace_back("layers", io::Json(std::move(layers)));
    metadata[at.at(std::string(table_key))].second = io::Json(std::move(table)).text();
  }
  return metadata;
}

}  // namespace parfait::convert
