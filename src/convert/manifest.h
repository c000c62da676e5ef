// manifest.json of a folder of ranks: what was cut, and what the files were. docs/shard.md has the
// keys.
#ifndef PARFAIT_CONVERT_MANIFEST_H_
#define PARFAIT_CONVERT_MANIFEST_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "convert/slices.h"
#include "parfait/error.h"

namespace parfait::convert {

inline constexpr std::string_view manifest_name = "manifest.json";
inline constexpr std::string_view rest_name = "source.rest";   // what no rank holds
inline constexpr std::string_view rank_key = "parfait_shard";  // of each rank's __metadata__
inline constexpr std::uint64_t max_manifest_bytes = 256u << 20;
inline constexpr std::int64_t manifest_version = 1;

std::string rank_name(std::uint32_t rank, std::uint32_t ranks);  // "rank_00_of_04.safetensors"

struct FileEntry {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header_bytes = 0;  // of a safetensors file, its 8-byte length included
  std::string header_digest;
  std::string digest;  // of the whole file
};

// A tensor that the ranks do not all hold whole.
struct CutTensor {
  Slices slices;
  std::uint64_t kept = 0;  // bytes of its padding that stand in the rest; 0: they are zeros
};

struct ManifestLayer {
  std::string name, format;
  SplitAxis axis = SplitAxis::replicated;
  std::string reason;
  std::shared_ptr<const Shares> shares;
  std::vector<std::string> tensors;  // those of `cut`
};

struct Manifest {
  std::uint32_t ranks = 1;
  std::vector<FileEntry> index;  // of the source: none or one
  std::vector<FileEntry> files;  // of the source, in order
  std::vector<FileEntry> rank_files;
  FileEntry rest;
  std::vector<ManifestLayer> layers;
  std::unordered_map<std::string, CutTensor> cut;

  std::string text() const;
};

// name stands for the file in messages. What comes back is consistent in itself: shares cover
// their axes, names leave no folder. Whether it fits the files, merge finds out.
Result<Manifest> read_manifest(const std::filesystem::path& folder);
Result<Manifest> parse_manifest(std::string_view text, const std::string& name);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_MANIFEST_H_
