#include "convert/output.h"

#include <algorithm>
#include <numeric>
#include <system_error>

#include "base/checked.h"
#include "base/result.h"
#include "formats/format.h"
#include "io/replacement.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t alignment = 64;
constexpr std::string_view marker_suffix = ".comfy_quant";

}  // namespace

Result<Done> refuse_files(const std::filesystem::path& target,
                          std::span<const std::filesystem::path> files) {
  for (const std::filesystem::path& file : files) {
    std::error_code absent;
    if (std::filesystem::equivalent(target, file, absent))
      return make_error(ErrorCode::file_write,
                        "{}: is the input file {}; the output needs another name",
                        printable(target.string(), 1000), printable(file.string(), 1000));
  }
  return Done{};
}

Result<Done> refuse_inputs(const std::filesystem::path& target,
                           std::span<const Checkpoint> inputs) {
  std::vector<std::filesystem::path> files;
  for (const Checkpoint& input : inputs)
    for (const container::Shard& shard : input.state()->index->shards())
      files.emplace_back(shard.reader->name());
  return refuse_files(target, files);
}

Result<Output> Output::create(const std::filesystem::path& target,
                              const std::vector<container::TensorDeclaration>& tensors,
                              std::span<const Checkpoint> inputs, const OutputOptions& options) {
  PARFAIT_CHECK_OK(refuse_inputs(target, inputs));
  PARFAIT_CHECK_OK(io::refuse_other_kind(target, io::safetensors_file));
  std::vector<std::uint64_t> bytes;
  for (const container::TensorDeclaration& tensor : tensors) {
    PARFAIT_TRY(const std::uint64_t size, container::tensor_bytes(tensor));
    bytes.push_back(size);
  }
  // Aligned sizes first, then by element size, markers last.
  const auto rank = [&](std::size_t i) -> unsigned {
    if (tensors[i].name.ends_with(marker_suffix)) return 1000;
    return bytes[i] % alignment == 0 ? 0 : 500 - dtype_bits(tensors[i].dtype);
  };
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rank(a) < rank(b); });

  std::vector<container::TensorDeclaration> declared;
  for (const std::size_t i : order) declared.push_back(tensors[i]);
  PARFAIT_TRY(const std::vector<std::byte> header,
              container::make_header(declared, options.metadata));
  std::vector<std::uint64_t> offsets(tensors.size());
  std::uint64_t end = header.size();
  for (const std::size_t i : order) {
    offsets[i] = end;
    end += bytes[i];
  }
  PARFAIT_TRY(io::PartFile file,
              io::PartFile::create(target, end, options.fingerprint, options.start));
  PARFAIT_CHECK_OK(file.write_at(0, header));
  Output output(std::move(file));
  output.offsets_ = std::move(offsets);
  output.bytes_ = std::move(bytes);
  return output;
}

Result<Done> Output::put(std::size_t i, std::uint64_t at, ByteSpan bytes) {
  if (at > bytes_[i] || bytes.size() > bytes_[i] - at)
    return make_error(ErrorCode::file_write, "{}: a tensor got more bytes than it has",
                      file_.name());
  return file_.write_at(offsets_[i] + at, bytes);
}

Result<Done> Output::get(std::size_t i, std::uint64_t at, std::span<std::byte> bytes) const {
  if (at > bytes_[i] || bytes.size() > bytes_[i] - at)
    return make_error(ErrorCode::file_write, "{}: more of a tensor was asked for than it has",
                      file_.name());
  return file_.read_at(offsets_[i] + at, bytes);
}

}  // namespace parfait::convert
