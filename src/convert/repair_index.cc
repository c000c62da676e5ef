// The shard index of a set that is repaired: names that tensors lost or got, the total size.

#include <algorithm>
#include <map>
#include <system_error>
#include <unordered_map>

#include "base/result.h"
#include "container/shard_index.h"
#include "convert/repair.h"
#include "io/json.h"

namespace parfait::convert {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view index_extension = ".safetensors.index.json";

// As the tools of Hugging Face write it: two spaces, names sorted.
std::string to_text(const io::Json& root, const std::map<std::string, std::string>& weight_map) {
  std::string text = "{\n";
  for (const auto& [key, value] : *root.object()) {
    if (key == "weight_map") continue;
    text += "  ";
    io::append_json_string(text, key);
    text += ": " + value.text() + ",\n";
  }
  text += "  \"weight_map\": {";
  bool first = true;
  for (const auto& [name, file] : weight_map) {
    text += first ? "\n    " : ",\n    ";
    first = false;
    io::append_json_string(text, name);
    text += ": ";
    io::append_json_string(text, file);
  }
  text += first ? "}\n}\n" : "\n  }\n}\n";
  return text;
}

io::Json with_total(const io::Json& root, std::uint64_t total) {
  io::Json::Object out = *root.object();
  for (auto& [key, value] : out) {
    if (key != "metadata" || !value.object()) continue;
    io::Json::Object metadata = *value.object();
    for (auto& [name, member] : metadata)
      if (name == "total_size") member = io::Json(static_cast<std::int64_t>(total));
    value = io::Json(std::move(metadata));
  }
  return io::Json(std::move(out));
}

Result<io::Json> read(const fs::path& file) {
  PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(file, Io::pread));
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes, reader->read(0, reader->size(), scratch));
  auto json = io::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                             {.max_bytes = container::max_index_bytes, .max_depth = 32});
  if (!json || !json->object())
    return make_error(ErrorCode::index_json, "{}: is not a JSON object",
                      printable(file.string(), 1000));
  return json;
}

}  // namespace

Result<fs::path> index_of(const fs::path& path, const container::TensorIndex& index) {
  std::error_code error;
  if (path.filename().string().ends_with(index_extension)) return path;
  const bool folder = fs::is_directory(path, error);
  // One file of a set, or a folder with one index: as open() takes them.
  fs::path found;
  fs::path where = folder ? path : path.parent_path();
  if (where.empty()) where = ".";
  const std::string file = path.filename().string();
  const std::size_t of = file.rfind("-of-");
  if (!folder) {
    if (of == std::string::npos || index.shards().size() < 2) return fs::path();
    const std::size_t dash = file.rfind('-', of - 1);
    if (dash == std::string::npos) return fs::path();
    found = where / (file.substr(0, dash) + std::string(index_extension));
    return fs::exists(found, error) ? found : fs::path();
  }
  for (fs::directory_iterator it(where, error), end; !error && it != end; it.increment(error))
    if (it->path().filename().string().ends_with(index_extension)) found = it->path();
  return found;
}

Result<Done> mend_index(RepairPlan::State& state, const container::TensorIndex& index) {
  PARFAIT_TRY(state.index_file, index_of(state.path, index));
  if (state.index_file.empty()) return Done{};
  PARFAIT_TRY(const io::Json root, read(state.index_file));
  const io::Json* listed = root.find("weight_map");
  if (!listed || !listed->object()) return Done{};
  fs::path folder = state.index_file.parent_path();
  if (folder.empty()) folder = ".";

  std::map<std::string, std::string> wanted, between, old;
  for (const auto& [name, file] : *listed->object())
    if (const std::string* text = file.string()) old.emplace(name, *text);
  std::unordered_map<std::string_view, int> before;
  for (const TensorInfo& tensor : index.tensors()) before.emplace(tensor.name, 1);
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < state.drafts.size(); ++i) {
    const fs::path path = state.files[i].path;
    const std::string file = path.lexically_proximate(folder).generic_string();
    for (const DraftTensor& tensor : state.drafts[i].tensors) {
      if (tensor.fate == DraftTensor::Fate::removed) continue;
      const std::string& name = tensor.declared.name;
      const auto kept = old.find(name);
      // A file may be spelt in more ways than one; what stands there stays.
      const std::string& spelt = kept == old.end() ? file : kept->second;
      wanted.emplace(name, spelt);
      if (before.contains(name)) between.emplace(name, spelt);
      total += tensor.size();
    }
  }
  if (wanted == old) return Done{};
  std::vector<std::string> came, went;
  for (const auto& [name, file] : wanted)
    if (!old.contains(name)) came.push_back(name);
  for (const auto& [name, file] : old)
    if (!wanted.contains(name)) went.push_back(name);
  const io::Json mended = with_total(root, total);
  state.index_text = to_text(mended, wanted);
  if (!went.empty()) state.index_between = to_text(mended, between);
  const auto list = [](const std::vector<std::string>& names) {
    std::string text;
    for (std::size_t i = 0; i < names.size() && i < 3; ++i)
      text += (i ? ", " : "") + printable(names[i]);
    if (names.size() > 3) text += fmt::format(" and {} more", names.size() - 3);
    return text;
  };
  state.changes.push_back({state.index_file.string(), "", "weight_map",
                           went.empty() ? "" : "without " + list(went),
                           came.empty() ? "" : "with " + list(came),
                           "the index lists the tensors that the shards hold"});
  return Done{};
}

}  // namespace parfait::convert
