// The header of one safetensors file.
#ifndef PARFAIT_CONTAINER_HEADER_H_
#define PARFAIT_CONTAINER_HEADER_H_

#include <memory_resource>
#include <string>
#include <utility>
#include <vector>

#include "container/tensor_index.h"

namespace parfait::container {

struct Header {
  std::uint64_t header_bytes = 0;
  std::vector<TensorInfo> tensors;  // by offset; shard is 0; names and shapes live in the arena
  std::vector<std::pair<std::string, std::string>> metadata;
  std::uint64_t trailing_bytes = 0;  // behind the last tensor
};

// Reads and proves a header: every tensor lies in the file, exactly as long as its dtype and shape
// say, without holes or overlaps. Trailing bytes are counted, not judged. Allocates no more than a
// small multiple of the header's real size.
Result<Header> read_header(const io::Reader& reader, const OpenOptions& options,
                           std::pmr::monotonic_buffer_resource& arena);

// What a file that is no safetensors file is ("a Git LFS pointer to a file of 123 bytes"), from its
// first bytes; empty if nothing is recognised.
std::string recognise_kind(std::string_view start);

}  // namespace parfait::container

#endif  // PARFAIT_CONTAINER_HEADER_H_
