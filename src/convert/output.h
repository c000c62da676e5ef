// A checkpoint that is being written: tensors declared first, their bytes put in any order.
//
// Its data are laid out for whoever maps the file: tensors whose size is a multiple of 64 bytes
// first, in the order of declaration, each 64-byte aligned; then the rest by element size, widest
// first; markers last (safetensors allows no holes, so an odd size would displace all behind it).
// The header lists them in that order. The same declarations give the same bytes.
#ifndef PARFAIT_CONVERT_OUTPUT_H_
#define PARFAIT_CONVERT_OUTPUT_H_

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "container/writer.h"
#include "io/part_file.h"
#include "parfait/checkpoint.h"

namespace parfait::convert {

struct OutputOptions {
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string fingerprint;  // of the source, the options and the version
  io::PartFile::Start start = io::PartFile::Start::afresh;
};

// Refuses a target that is one of these files, or of the files of `inputs`, under whatever name.
Result<Done> refuse_files(const std::filesystem::path& target,
                          std::span<const std::filesystem::path> files);
Result<Done> refuse_inputs(const std::filesystem::path& target, std::span<const Checkpoint> inputs);

class Output {
 public:
  static Result<Output> create(const std::filesystem::path& target,
                               const std::vector<container::TensorDeclaration>& tensors,
                               std::span<const Checkpoint> inputs, const OutputOptions& options);

  std::size_t size() const { return offsets_.size(); }
  // Bytes of tensor i (in the order of declaration) from `at` on. From any thread.
  Result<Done> put(std::size_t i, std::uint64_t at, ByteSpan bytes);
  Result<Done> get(std::size_t i, std::uint64_t at, std::span<std::byte> bytes) const;
  std::uint64_t bytes(std::size_t i) const { return bytes_[i]; }
  io::PartFile& file() { return file_; }

 private:
  Output(io::PartFile file) : file_(std::move(file)) {}
  io::PartFile file_;
  std::vector<std::uint64_t> offsets_, bytes_;
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_OUTPUT_H_
