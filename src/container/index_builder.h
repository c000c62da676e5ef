// Puts headers together into a TensorIndex.
#ifndef PARFAIT_CONTAINER_INDEX_BUILDER_H_
#define PARFAIT_CONTAINER_INDEX_BUILDER_H_

#include "container/tensor_index.h"

namespace parfait::container {

class IndexBuilder {
 public:
  explicit IndexBuilder(const OpenOptions& options) : options_(options) {}

  // Reads the reader's header and adds its tensors. A tensor that another shard has too is an error
  // unless both hold the same bytes; then the first stays and a note tells.
  Result<Done> add(io::ReaderPtr reader);
  void add_finding(Finding finding) { index_->findings_.push_back(std::move(finding)); }
  // What has been added so far.
  const TensorIndex& index() const { return *index_; }
  TensorIndexPtr finish() { return std::move(index_); }

 private:
  void make_room(std::size_t more);
  Result<Done> check_duplicate(const TensorInfo& first, const TensorInfo& second);

  const OpenOptions options_;
  std::shared_ptr<TensorIndex> index_ = std::make_shared<TensorIndex>();
};

}  // namespace parfait::container

#endif  // PARFAIT_CONTAINER_INDEX_BUILDER_H_
