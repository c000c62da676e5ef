// Writes a safetensors file tensor by tensor, so that no more than a piece of it is ever in memory.
//
// The bytes go to a temporary beside the target, which is synced and then renamed over it. On any
// error, or where finish() is never called, the temporary is removed and the target is untouched.
// The same input gives the same bytes. A Writer belongs to one thread at a time.
#ifndef PARFAIT_WRITER_H_
#define PARFAIT_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/dtype.h"
#include "parfait/error.h"

namespace parfait {

struct OutputTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::uint64_t> shape;
};

enum class OutputKind { safetensors, png, html };

// Whether a file of this kind can be written there, before the work of making it. What is there
// already is replaced only if it is empty or of the same kind, and none of the files `inputs`,
// under whatever name.
Result<Done> check_target(const std::filesystem::path& target, OutputKind kind,
                          std::span<const std::filesystem::path> inputs = {});

// A page, through a temporary beside the target, as a Writer writes.
Result<Done> write_html(const std::filesystem::path& target, std::string_view page);

class Writer {
 public:
  // Refuses a target that is one of the files of `inputs`, under whatever name, and one that is
  // there already and is no safetensors file.
  static Result<Writer> create(
      const std::filesystem::path& target, const std::vector<OutputTensor>& tensors,
      const std::vector<std::pair<std::string, std::string>>& metadata = {},
      std::span<const Checkpoint> inputs = {});
  // The next bytes: the tensors' data, in the order in which they were declared, in pieces of any
  // size.
  Result<Done> append(std::span<const std::byte> bytes);
  // Puts the file in place. Fails if more or fewer bytes came than the tensors have.
  Result<Done> finish();

  Writer(Writer&&) noexcept;
  Writer& operator=(Writer&&) noexcept;
  ~Writer();

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace parfait

#endif  // PARFAIT_WRITER_H_
