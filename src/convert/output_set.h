// Where a conversion's tensors go: one safetensors file, a folder of shards with an index, or a
// GGUF file. All of it appears under its name at once, or none of it.
//
// Shards are written into an io::NewFolder, each of them and single files as io::PartFile has it.
#ifndef PARFAIT_CONVERT_OUTPUT_SET_H_
#define PARFAIT_CONVERT_OUTPUT_SET_H_

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "convert/conversion.h"
#include "convert/output.h"
#include "io/new_folder.h"

namespace parfait::convert {

struct OutputSetOptions {
  std::uint64_t max_shard = 0;  // 0: one file
  std::string fingerprint;
  io::PartFile::Start start = io::PartFile::Start::afresh;
};

class OutputSet {
 public:
  static Result<OutputSet> create(const std::filesystem::path& target, const Conversion& plan,
                                  std::span<const Checkpoint> inputs,
                                  const OutputSetOptions& options);
  // Bytes of the plan's tensor from `at` on. From any thread.
  Result<Done> put(std::size_t tensor, std::uint64_t at, ByteSpan bytes);
  // Units that an earlier run has written.
  bool has(std::size_t unit) const { return done_.contains(unit); }
  std::size_t resumed() const { return done_.size(); }
  Result<Done> record(std::size_t unit);
  // What was written is left for a later run.
  void keep();
  Result<Done> finish();

  const std::vector<std::string>& files() const { return files_; }
  std::uint64_t bytes() const { return total_bytes_; }

 private:
  OutputSet() = default;
  Result<Done> create_shards(const std::filesystem::path& target, const Conversion& plan,
                             std::span<const Checkpoint> inputs, const OutputSetOptions& options);
  Result<Done> create_gguf(const std::filesystem::path& target, const Conversion& plan,
                           std::span<const Checkpoint> inputs, const OutputSetOptions& options);
  Result<Done> add_safetensors(const std::filesystem::path& target, const Conversion& plan,
                               std::span<const std::size_t> units,
                               std::span<const Checkpoint> inputs, const OutputSetOptions& options);
  io::PartFile& file_of(std::size_t shard);
  void read_journal(const io::PartFile& file, const Conversion& plan);

  struct Place {
    std::size_t shard = 0, tensor = 0;  // of a safetensors output
    std::uint64_t offset = 0;           // of GGUF
  };
  std::optional<io::NewFolder> folder_;  // of a shard set; it goes behind its files
  std::vector<Output> shards_;
  std::optional<io::PartFile> gguf_;
  std::vector<Place> places_;             // by tensor
  std::vector<std::size_t> unit_shards_;  // by unit
  std::unordered_set<std::size_t> done_;
  std::filesystem::path target_;  // of a shard set
  std::string index_;             // its text
  std::vector<std::string> files_;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_OUTPUT_SET_H_
