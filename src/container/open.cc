// From a path to the files it means: one file, an index with its shards, or a folder.

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

#include "base/result.h"
#include "container/index_builder.h"
#include "container/shard_index.h"
#include "container/tensor_index.h"

namespace parfait::container {
namespace {

namespace fs = std::filesystem;
constexpr std::string_view extension = ".safetensors";
constexpr std::string_view index_extension = ".safetensors.index.json";

bool ends_with(const fs::path& path, std::string_view end) {
  return path.filename().string().ends_with(end);
}

constexpr std::size_t listed_names = 3;

// The first few of `count` names.
std::string list_some(const std::vector<std::string>& names, std::size_t count) {
  std::string text;
  const std::size_t listed = std::min(names.size(), listed_names);
  for (std::size_t i = 0; i < listed; ++i) text += (i ? ", " : "") + printable(names[i]);
  if (count > listed) text += fmt::format(" and {} more", count - listed);
  return text;
}
std::string list_some(const std::vector<std::string>& names) {
  return list_some(names, names.size());
}

// "model-00002-of-00005.safetensors": stem "model", number 2 of 5.
struct ShardName {
  std::string stem;
  unsigned number = 0, count = 0;
};
std::optional<ShardName> parse_shard_name(const std::string& file) {
  if (!file.ends_with(extension)) return std::nullopt;
  const std::string base = file.substr(0, file.size() - extension.size());
  const std::size_t of = base.rfind("-of-");
  if (of == std::string::npos) return std::nullopt;
  const std::size_t dash = base.rfind('-', of - 1);
  if (of == 0 || dash == std::string::npos) return std::nullopt;
  const auto number = [](const std::string& digits) -> std::optional<unsigned> {
    if (digits.empty() || digits.size() > 6 ||
        digits.find_first_not_of("0123456789") != std::string::npos)
      return std::nullopt;
    return static_cast<unsigned>(std::stoul(digits));
  };
  const auto n = number(base.substr(dash + 1, of - dash - 1)), count = number(base.substr(of + 4));
  if (!n || !count || *n < 1 || *n > *count) return std::nullopt;
  return ShardName{base.substr(0, dash), *n, *count};
}

// The *.safetensors files and indexes of a folder, sorted by name.
struct Listing {
  std::vector<fs::path> files, indexes;
};
Result<Listing> list_folder(const fs::path& folder) {
  Listing listing;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) continue;
    if (ends_with(it->path(), index_extension)) listing.indexes.push_back(it->path());
    if (ends_with(it->path(), extension)) listing.files.push_back(it->path());
  }
  if (error)
    return make_error(ErrorCode::file_not_found, "{}: the folder cannot be listed: {}",
                      printable(folder.string(), 1000), error.message());
  std::ranges::sort(listing.files);
  std::ranges::sort(listing.indexes);
  return listing;
}

class Opener {
 public:
  explicit Opener(const OpenOptions& options) : options_(options), builder_(options) {}

  Result<TensorIndexPtr> open(const fs::path& path) {
    std::error_code error;
    if (fs::is_directory(path, error)) {
      PARFAIT_CHECK_OK(open_folder(path));
    } else if (ends_with(path, index_extension)) {
      PARFAIT_CHECK_OK(open_with_index(path));
    } else if (const auto shard = parse_shard_name(path.filename().string());
               shard && shard->count > 1) {
      PARFAIT_CHECK_OK(open_shard(path, *shard));
    } else {
      PARFAIT_CHECK_OK(add_file(path));
    }
    return builder_.finish();
  }

 private:
  Result<Done> add_file(const fs::path& path) {
    PARFAIT_TRY(io::ReaderPtr reader, io::open_file(path, options_.io));
    return builder_.add(std::move(reader));
  }

  Result<Done> open_folder(const fs::path& folder) {
    PARFAIT_TRY(const Listing listing, list_folder(folder));
    const std::string name = printable(folder.string(), 1000);
    if (listing.indexes.size() == 1) return open_with_index(listing.indexes.front());
    if (listing.indexes.size() > 1)
      return make_error(ErrorCode::folder_ambiguous,
                        "{}: holds several shard indexes ({}); name the one to open", name,
                        list_some(names_of(listing.indexes)));
    if (listing.files.empty())
      return make_error(ErrorCode::folder_empty,
                        "{}: holds no *.safetensors file and no shard index", name);
    if (const auto shard = parse_shard_name(listing.files.front().filename().string());
        shard && shard->count > 1) {
      std::size_t of_set = 0;
      for (const fs::path& file : listing.files) {
        const auto other = parse_shard_name(file.filename().string());
        of_set += other && other->stem == shard->stem && other->count == shard->count;
      }
      if (of_set == listing.files.size()) return open_shard(listing.files.front(), *shard);
    }
    if (listing.files.size() == 1) return add_file(listing.files.front());
    return make_error(
        ErrorCode::folder_ambiguous,
        "{}: holds {} files that are not one shard set ({}); they may be alternatives, so name "
        "the one to open",
        name, listing.files.size(), list_some(names_of(listing.files)));
  }

  static std::vector<std::string> names_of(const std::vector<fs::path>& paths) {
    std::vector<std::string> names;
    for (const fs::path& path : paths) names.push_back(path.filename().string());
    return names;
  }

  // One file of a numbered set: what its index lists if one lists it, else all files of the set by
  // their numbers.
  Result<Done> open_shard(const fs::path& path, const ShardName& shard) {
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    const std::string sample = path.filename().string();
    std::error_code error;
    const fs::path index = folder / (shard.stem + std::string(index_extension));
    if (fs::exists(index, error)) {
      PARFAIT_TRY(const ShardIndex shards, read_index(index));
      if (std::ranges::find(shards.files, sample) != shards.files.end())
        return open_listed(index, shards);
      Finding finding{ErrorCode::index_stray_file};
      finding.severity = Severity::warning;
      finding.file = path.string();
      finding.message = fmt::format(
          "the index {} does not list this file, which was opened by its number in its set",
          printable(index.filename().string()));
      builder_.add_finding(std::move(finding));
    }
    PARFAIT_TRY(const Listing listing, list_folder(folder));
    std::unordered_set<std::string> present;
    for (const fs::path& file : listing.files) present.insert(file.filename().string());
    const std::size_t of = sample.rfind("-of-");
    const std::size_t width = of - shard.stem.size() - 1;
    std::vector<std::string> files, missing;
    for (unsigned i = 1; i <= shard.count; ++i) {
      std::string file = fmt::format("{}-{:0{}}{}", shard.stem, i, width, sample.substr(of));
      if (present.contains(file)) {
        files.push_back(std::move(file));
      } else if (missing.size() < listed_names) {
        missing.push_back(std::move(file));
      }
    }
    if (const std::size_t count = shard.count - files.size(); count > 0)
      return make_error(
          ErrorCode::index_shard_missing, "{}: is one of {} shards, of which {} are missing: {}",
          printable(path.string(), 1000), shard.count, count, list_some(missing, count));
    for (const std::string& file : files) PARFAIT_CHECK_OK(add_file(folder / file));
    return Done{};
  }

  Result<Done> open_with_index(const fs::path& path) {
    PARFAIT_TRY(const ShardIndex shards, read_index(path));
    return open_listed(path, shards);
  }

  static Result<ShardIndex> read_index(const fs::path& path) {
    const std::string name = printable(path.string(), 1000);
    PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(path, Io::pread));
    if (reader->size() > max_index_bytes)
      return make_error(ErrorCode::index_json,
                        "{}: the shard index is {} bytes long, above the limit of {}", name,
                        reader->size(), max_index_bytes);
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan text, reader->read(0, reader->size(), scratch));
    return parse_shard_index({reinterpret_cast<const char*>(text.data()), text.size()}, name);
  }

  // The shards of the index at `path`.
  Result<Done> open_listed(const fs::path& path, const ShardIndex& shards) {
    const std::string name = printable(path.string(), 1000);
    const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
    PARFAIT_CHECK_OK(check_files(folder, shards, name));
    for (const std::string& file : shards.files) PARFAIT_CHECK_OK(add_file(folder / file));
    PARFAIT_CHECK_OK(compare_with_index(shards, name));
    report_stray_files(folder, shards);
    return Done{};
  }

  static Result<Done> check_files(const fs::path& folder, const ShardIndex& shards,
                                  const std::string& name) {
    std::error_code error;
    const fs::path root = fs::weakly_canonical(folder, error);
    if (error)
      return make_error(ErrorCode::file_read, "{}: its folder's real path cannot be found: {}",
                        name, error.message());
    std::vector<std::string> missing;
    for (const std::string& file : shards.files) {
      const fs::path path = folder / file;
      if (!fs::exists(path, error)) {
        missing.push_back(file);
        continue;
      }
      if (!leaves_through_link(root, path)) continue;
      return make_error(ErrorCode::index_path,
                        "{}: the shard {} is a link out of the index's folder", name,
                        printable(file));
    }
    if (missing.empty()) return Done{};
    return make_error(ErrorCode::index_shard_missing,
                      "{}: expects {} shards, of which {} are missing: {}", name,
                      shards.files.size(), missing.size(), list_some(missing));
  }

  // A link may point anywhere a user of a model cache would put the file: beside the folder's other
  // files or into the "blobs" folder of a Hugging Face cache, which lies above
  // "snapshots/<revision>".
  static bool leaves_through_link(const fs::path& root, const fs::path& path) {
    std::error_code error;
    const fs::path real = fs::weakly_canonical(path, error);
    const auto within = [&](const fs::path& folder) {
      return std::mismatch(folder.begin(), folder.end(), real.begin(), real.end()).first ==
             folder.end();
    };
    if (error) return true;
    if (within(root)) return false;
    for (fs::path parent = root; parent.has_relative_path(); parent = parent.parent_path())
      if (parent.filename() == "snapshots") return !within(parent.parent_path() / "blobs");
    return true;
  }

  Result<Done> compare_with_index(const ShardIndex& shards, const std::string& name) {
    std::vector<std::string> absent;
    std::size_t listed = 0;
    for (const auto& [tensor, file] : shards.weight_map) {
      const TensorInfo* found = builder_.index().find(tensor);
      if (!found || (found->shard != file && !is_duplicate(tensor))) absent.push_back(tensor);
      listed += found != nullptr;
    }
    if (!absent.empty()) {
      std::ranges::sort(absent);
      return make_error(ErrorCode::index_tensor_missing,
                        "{}: places {} tensors in shards that do not hold them: {}", name,
                        absent.size(), list_some(absent));
    }
    if (listed == builder_.index().tensors().size()) return Done{};
    for (const TensorInfo& tensor : builder_.index().tensors()) {
      if (shards.weight_map.contains(std::string(tensor.name))) continue;
      Finding finding{ErrorCode::index_tensor_unlisted};
      finding.severity = Severity::warning;
      finding.tensor = std::string(tensor.name);
      finding.file = builder_.index().shards()[tensor.shard].reader->name();
      finding.message =
          "the shard holds a tensor that the index does not list; it was read all the same";
      unlisted_.push_back(std::move(finding));
    }
    for (Finding& finding : unlisted_) builder_.add_finding(std::move(finding));
    return Done{};
  }

  // Tensors that stand in two shards are kept from the first; the index may name the second.
  bool is_duplicate(const std::string& tensor) {
    if (!duplicates_) {
      duplicates_.emplace();
      for (const Finding& finding : builder_.index().findings())
        if (finding.code == ErrorCode::index_duplicate) duplicates_->insert(finding.tensor);
    }
    return duplicates_->contains(tensor);
  }

  void report_stray_files(const fs::path& folder, const ShardIndex& shards) {
    const auto listing = list_folder(folder);
    if (!listing) return;
    const std::set<std::string> known(shards.files.begin(), shards.files.end());
    for (const fs::path& file : listing->files) {
      if (known.contains(file.filename().string())) continue;
      Finding finding{ErrorCode::index_stray_file};
      finding.severity = Severity::warning;
      finding.file = file.string();
      finding.message = "a safetensors file beside the index belongs to no shard; it was not read";
      builder_.add_finding(std::move(finding));
    }
  }

  const OpenOptions options_;
  IndexBuilder builder_;
  std::vector<Finding> unlisted_;
  std::optional<std::unordered_set<std::string>> duplicates_;
};

}  // namespace

Result<TensorIndexPtr> open_index(const fs::path& path, const OpenOptions& options) {
  return Opener(options).open(path);
}

}  // namespace parfait::container
