// The public writer: the container's, and a guard against writing over what is being read.

#include "parfait/writer.h"

#include "base/result.h"
#include "container/writer.h"
#include "convert/output.h"
#include "io/replacement.h"

namespace parfait {
namespace {

const io::FileKind& kind_of(OutputKind kind) {
  switch (kind) {
    case OutputKind::safetensors:
      break;
    case OutputKind::png:
      return io::png_file;
    case OutputKind::html:
      return io::html_file;
  }
  return io::safetensors_file;
}

}  // namespace

Result<Done> check_target(const std::filesystem::path& target, OutputKind kind,
                          std::span<const std::filesystem::path> inputs) {
  PARFAIT_CHECK_OK(convert::refuse_files(target, inputs));
  return io::try_target(target, kind_of(kind));
}

Result<Done> write_html(const std::filesystem::path& target, std::string_view page) {
  PARFAIT_TRY(io::Replacement file, io::Replacement::create(target, io::html_file));
  PARFAIT_CHECK_OK(file.append(std::as_bytes(std::span(page))));
  return file.finish();
}

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
  PARFAIT_CHECK_OK(convert::refuse_inputs(target, inputs));
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
