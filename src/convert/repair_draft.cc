#include "convert/repair_draft.h"

#include <algorithm>

namespace parfait::convert {

Draft::Draft(container::TensorIndexPtr index) : index_(std::move(index)) {
  tensors_.reserve(index_->tensors().size());
  std::vector<std::uint64_t> ends;
  for (const container::Shard& shard : index_->shards()) {
    DraftFile file;
    file.metadata = shard.metadata;
    files_.push_back(std::move(file));
    ends.push_back(8 + shard.header_bytes);
  }
  for (const TensorInfo& tensor : index_->tensors()) {
    DraftTensor draft;
    draft.declared = {
        std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}};
    draft.old = &tensor;
    names_.emplace(draft.declared.name, 1);
    tensors_.push_back(std::move(draft));
    ends[tensor.shard] = std::max(ends[tensor.shard], tensor.offset + tensor.bytes);
  }
  // A tensor that stands in two shards is kept from the first: what is behind the last one here may
  // be a tensor then, so only the container's own finding tells of trailing bytes.
  for (const Finding& finding : index_->findings()) {
    if (finding.code != ErrorCode::header_trailing) continue;
    for (std::size_t i = 0; i < files_.size(); ++i) {
      const io::Reader& reader = *index_->shards()[i].reader;
      if ((finding.file.empty() || finding.file == reader.name()) && reader.size() > ends[i])
        files_[i].trailing_bytes = reader.size() - ends[i];
    }
  }
}

void Draft::note(std::uint32_t shard, std::string_view layer, std::string_view tensor,
                 std::string before, std::string after, std::string why) {
  files_[shard].edited = DraftFile::Edited::yes;
  changes_.push_back({index_->shards()[shard].reader->name(), std::string(layer),
                      std::string(tensor), std::move(before), std::move(after), std::move(why)});
}

bool Draft::rename(const TensorInfo& tensor, std::string name) {
  DraftTensor& draft = of(tensor);
  if (!names_.emplace(name, 1).second) return false;
  names_.erase(draft.declared.name);
  draft.declared.name = std::move(name);
  return true;
}

void Draft::remove(const TensorInfo& tensor) {
  DraftTensor& draft = of(tensor);
  draft.fate = DraftTensor::Fate::removed;
  names_.erase(draft.declared.name);
}

bool Draft::add(const TensorInfo& behind, std::string name, DType dtype,
                std::vector<std::uint64_t> shape, std::vector<std::byte> bytes) {
  if (!names_.emplace(name, 1).second) return false;
  DraftTensor draft;
  draft.declared = {std::move(name), dtype, std::move(shape)};
  draft.bytes = std::move(bytes);
  added_.emplace_back(static_cast<std::size_t>(&behind - index_->tensors().data()),
                      std::move(draft));
  return true;
}

std::vector<DraftFile> Draft::take_files() {
  std::stable_sort(added_.begin(), added_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::size_t next = 0;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    DraftFile& file = files_[tensors_[i].old->shard];
    file.tensors.push_back(std::move(tensors_[i]));
    for (; next < added_.size() && added_[next].first == i; ++next)
      file.tensors.push_back(std::move(added_[next].second));
  }
  return std::move(files_);
}

}  // namespace parfait::convert
