// The tensors of a file or shard set: names, dtypes, shapes and offsets, proven consistent with the
// files' sizes. Knows nothing of quantization.
//
// Immutable after opening; shared freely between threads. Names, shapes and metadata live as long
// as the index. Opening is linear in the size of the headers.
#ifndef PARFAIT_CONTAINER_TENSOR_INDEX_H_
#define PARFAIT_CONTAINER_TENSOR_INDEX_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "io/reader.h"
#include "parfait/checkpoint.h"

namespace parfait::container {

inline constexpr std::uint64_t max_rank = 16;  // dimensions of a tensor; more is an error

struct Shard {
  io::ReaderPtr reader;
  std::uint64_t header_bytes = 0;  // H: the JSON's length; data starts at 8 + H
  std::uint64_t tensors = 0;
  std::vector<std::pair<std::string, std::string>> metadata;  // __metadata__, in file order
};

class TensorIndex {
 public:
  std::span<const TensorInfo> tensors() const { return tensors_; }  // by shard, then offset
  const TensorInfo* find(std::string_view name) const;
  std::span<const Shard> shards() const { return shards_; }
  std::span<const Finding> findings() const { return findings_; }

  // A tensor's bytes; see io::Reader::read for how long they live.
  Result<ByteSpan> read(const TensorInfo& tensor, std::vector<std::byte>& scratch) const;
  void drop(const TensorInfo& tensor) const;

 private:
  friend class IndexBuilder;
  // Names and shapes; the maps' string_views point into it.
  std::unique_ptr<std::pmr::monotonic_buffer_resource> arena_ =
      std::make_unique<std::pmr::monotonic_buffer_resource>();
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, std::uint32_t> by_name_;
  std::vector<Shard> shards_;
  std::vector<Finding> findings_;
};

using TensorIndexPtr = std::shared_ptr<const TensorIndex>;

// A *.safetensors file, a *.safetensors.index.json with its shards, or a folder that holds either.
Result<TensorIndexPtr> open_index(const std::filesystem::path& path, const OpenOptions& options);
// A single file's bytes from any reader: for tests, fuzzing and files that are not on disk.
Result<TensorIndexPtr> open_single(io::ReaderPtr reader, const OpenOptions& options);

}  // namespace parfait::container

#endif  // PARFAIT_CONTAINER_TENSOR_INDEX_H_
