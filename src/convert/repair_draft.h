// What a file is to become: its tensors, each with the bytes that it has or new ones, and its
// metadata. Mends edit a Draft; the layouts turn it into bytes.
#ifndef PARFAIT_CONVERT_REPAIR_DRAFT_H_
#define PARFAIT_CONVERT_REPAIR_DRAFT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "container/tensor_index.h"
#include "container/writer.h"
#include "parfait/repair.h"

namespace parfait::convert {

struct DraftTensor {
  container::TensorDeclaration declared;
  const TensorInfo* old = nullptr;              // in the source; null for a tensor that is added
  std::optional<std::vector<std::byte>> bytes;  // in place of the old ones
  enum class Fate { kept, removed } fate = Fate::kept;

  std::uint64_t size() const { return bytes ? bytes->size() : old->bytes; }
};

struct DraftFile {
  std::vector<DraftTensor> tensors;  // by old offset, added ones where they belong
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t trailing_bytes = 0;  // behind the last tensor, to be cut off
  enum class Edited { no, yes } edited = Edited::no;
};

class Draft {
 public:
  explicit Draft(container::TensorIndexPtr index);

  const container::TensorIndex& index() const { return *index_; }
  const container::TensorIndexPtr& index_ptr() const { return index_; }
  std::vector<RepairChange>& changes() { return changes_; }

  // The draft of a tensor of the source.
  DraftTensor& of(const TensorInfo& tensor) {
    return tensors_[static_cast<std::size_t>(&tensor - index_->tensors().data())];
  }
  // Marks the tensor's file as edited and tells why. before and after are what a person reads.
  void note(std::uint32_t shard, std::string_view layer, std::string_view tensor,
            std::string before, std::string after, std::string why);
  // Whether a tensor of that name is there, after all edits so far.
  bool has_name(const std::string& name) const { return names_.contains(name); }
  // False where the name is taken.
  bool rename(const TensorInfo& tensor, std::string name);
  void remove(const TensorInfo& tensor);
  // A tensor that will stand behind `behind`, in its file.
  bool add(const TensorInfo& behind, std::string name, DType dtype,
           std::vector<std::uint64_t> shape, std::vector<std::byte> bytes);
  std::vector<std::pair<std::string, std::string>>& metadata(std::uint32_t shard) {
    return files_[shard].metadata;
  }

  // Once all is edited: the files, with their tensors.
  std::vector<DraftFile> take_files();

 private:
  container::TensorIndexPtr index_;
  std::vector<DraftTensor> tensors_;                        // as index().tensors()
  std::vector<std::pair<std::size_t, DraftTensor>> added_;  // behind which tensor
  std::vector<DraftFile> files_;                            // metadata and flags
  std::unordered_map<std::string, int> names_;
  std::vector<RepairChange> changes_;
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_REPAIR_DRAFT_H_
