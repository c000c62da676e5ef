#include "container/tensor_index.h"

#include <algorithm>

#include "base/result.h"
#include "container/header.h"
#include "container/index_builder.h"

namespace parfait::container {

const TensorInfo* TensorIndex::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &tensors_[it->second];
}

Result<ByteSpan> TensorIndex::read(const TensorInfo& tensor,
                                   std::vector<std::byte>& scratch) const {
  return shards_[tensor.shard].reader->read(tensor.offset, tensor.bytes, scratch);
}

void TensorIndex::drop(const TensorInfo& tensor) const {
  shards_[tensor.shard].reader->drop(tensor.offset, tensor.bytes);
}

// Room for at least twice what is there, so that many small shards do not each move it all.
void IndexBuilder::make_room(std::size_t more) {
  TensorIndex& index = *index_;
  const std::size_t needed = index.tensors_.size() + more;
  if (needed <= index.tensors_.capacity()) return;
  const std::size_t room = std::max(needed, 2 * index.tensors_.size());
  index.tensors_.reserve(room);
  index.by_name_.reserve(room);
}

Result<Done> IndexBuilder::add(io::ReaderPtr reader) {
  TensorIndex& index = *index_;
  const auto shard_number = static_cast<std::uint32_t>(index.shards_.size());
  PARFAIT_TRY(Header header, read_header(*reader, options_, *index.arena_));
  if (header.trailing_bytes > 0) {
    Finding finding{ErrorCode::header_trailing};
    finding.severity =
        options_.strictness == Strictness::lenient ? Severity::warning : Severity::error;
    finding.got = fmt::format("{} bytes behind the last tensor", header.trailing_bytes);
    finding.expected = "none";
    finding.message =
        "bytes at the end of the file belong to no tensor, as one download tool leaves them; "
        "--lenient accepts them";
    finding.file = reader->name();
    index.findings_.push_back(std::move(finding));
  }
  index.shards_.push_back({std::move(reader), header.header_bytes, 0, std::move(header.metadata)});
  make_room(header.tensors.size());
  for (TensorInfo& tensor : header.tensors) {
    tensor.shard = shard_number;
    const auto [it, added] =
        index.by_name_.try_emplace(tensor.name, static_cast<std::uint32_t>(index.tensors_.size()));
    if (added) {
      index.tensors_.push_back(tensor);
      ++index.shards_[shard_number].tensors;
      continue;
    }
    const TensorInfo& first = index.tensors_[it->second];
    if (first.shard == shard_number)
      return make_error(ErrorCode::header_duplicate, "{}: tensor {} stands twice in the header",
                        printable(index.shards_[shard_number].reader->name(), 1000),
                        printable(tensor.name));
    PARFAIT_CHECK_OK(check_duplicate(first, tensor));
  }
  return Done{};
}

Result<Done> IndexBuilder::check_duplicate(const TensorInfo& first, const TensorInfo& second) {
  const std::string first_file = printable(index_->shards_[first.shard].reader->name(), 1000);
  const std::string second_file = printable(index_->shards_[second.shard].reader->name(), 1000);
  bool same = first.dtype == second.dtype && std::ranges::equal(first.shape, second.shape);
  constexpr std::uint64_t piece = 1 << 20;
  for (std::uint64_t at = 0; same && at < first.bytes; at += piece) {
    TensorInfo a = first, b = second;
    a.offset += at;
    b.offset += at;
    a.bytes = b.bytes = std::min(piece, first.bytes - at);
    std::vector<std::byte> scratch_a, scratch_b;
    PARFAIT_TRY(const ByteSpan bytes_a, index_->read(a, scratch_a));
    PARFAIT_TRY(const ByteSpan bytes_b, index_->read(b, scratch_b));
    same = std::ranges::equal(bytes_a, bytes_b);
    index_->drop(a);
    index_->drop(b);
  }
  if (!same)
    return make_error(ErrorCode::index_duplicate,
                      "tensor {} stands in {} and in {} with different contents",
                      printable(second.name), first_file, second_file);
  Finding finding{ErrorCode::index_duplicate};
  finding.severity = Severity::note;
  finding.tensor = std::string(second.name);
  finding.file = index_->shards_[second.shard].reader->name();
  finding.message = fmt::format(
      "the tensor stands in {} too, byte for byte the same; it was taken from there", first_file);
  index_->findings_.push_back(std::move(finding));
  return Done{};
}

Result<TensorIndexPtr> open_single(io::ReaderPtr reader, const OpenOptions& options) {
  IndexBuilder builder(options);
  PARFAIT_CHECK_OK(builder.add(std::move(reader)));
  return builder.finish();
}

}  // namespace parfait::container
