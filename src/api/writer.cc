// The public writer: the container's, and a guard against writing over what is being read.

#include "parfait/writer.h"

#include <system_error>

#include "base/result.h"
#include "container/writer.h"

namespace parfait {
namespace {

Result<Done> refuse_inputs(const std::filesystem::path& target,
                           std::span<const Checkpoint> inputs) {
  for (const Checkpoint& input : inputs) {
    for (const ShardInfo& shard : input.shards()) {
      std::error_code absent;
      if (std::filesystem::equivalent(target, shard.path, absent))
        return make_error(ErrorCode::file_write,
                          "{}: is the input file {}; the output needs another name",
                          printable(target.string(), 1000), printable(shard.path, 1000));
    }
  }
  return Done{};
}

}  // namespace

struct Writer::State {
  container::Writer writer;
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

Result<Writer> Writer::create(const std::filesystem::path& target,
                              const std::vector<OutputTensor>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata,
                              std::span<const Checkpoint> inputs) {
  PARFAIT_CHECK_OK(refuse_inputs(target, inputs));
  std::vector<container::TensorDeclaration> declarations;
  for (const OutputTensor& tensor : tensors)
    declarations.push_back({tensor.name, tensor.dtype, tensor.shape});
  PARFAIT_TRY(container::Writer writer, container::Writer::create(target, declarations, metadata));
  return Writer(std::make_unique<State>(State{std::move(writer)}));
}

Result<Done> Writer::append(std::span<const std::byte> bytes) {
  return state_->writer.append(bytes);
}
Result<Done> Writer::finish() { return state_->writer.finish(); }

}  // namespace parfait
