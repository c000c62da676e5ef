// Writes a safetensors file: header first, then each tensor's bytes in the order given.
//
// The bytes go to a temporary beside the target, which is synced and then renamed over it; on any
// error, or if finish() is never called, the temporary is removed and the target is untouched. Data
// starts 64-byte aligned (the header is padded with spaces, as the format allows). Tensors are
// written in the order of the declarations, so the same input gives the same bytes.
#ifndef PARFAIT_CONTAINER_WRITER_H_
#define PARFAIT_CONTAINER_WRITER_H_

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "parfait/dtype.h"
#include "parfait/error.h"

namespace parfait::container {

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

class Writer {
 public:
  static Result<Writer> create(
      const std::filesystem::path& target, const std::vector<TensorDeclaration>& tensors,
      const std::vector<std::pair<std::string, std::string>>& metadata = {});
  // The next bytes of the data region. Tensors may be written in pieces of any size.
  Result<Done> append(ByteSpan bytes);
  // Fails if more or fewer bytes came than the declarations say.
  Result<Done> finish();

  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Bytes of its data. An error where no file could hold them.
Result<std::uint64_t> tensor_bytes(const TensorDeclaration& tensor);

// A header for these tensors, padded so that the data behind it starts 64-byte aligned: the length
// and the JSON.
Result<std::vector<std::byte>> make_header(
    const std::vector<TensorDeclaration>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace parfait::container

#endif  // PARFAIT_CONTAINER_WRITER_H_
