#include "container/writer.h"

#include <fcntl.h>
#include <simdjson.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <system_error>
#include <unordered_set>

#include "base/checked.h"
#include "base/result.h"
#include "container/tensor_index.h"
#include "io/json.h"
#include "parfait/checkpoint.h"

namespace parfait::container {
namespace {

constexpr std::uint64_t data_alignment = 64;

Result<std::uint64_t> bytes_of(const TensorDeclaration& tensor) {
  const auto elements = checked_product(tensor.shape);
  const auto bits = elements ? checked_mul(*elements, dtype_bits(tensor.dtype)) : std::nullopt;
  if (!bits || *bits % 8 != 0)
    return make_error(ErrorCode::header_shape, "tensor {}: {} {} cannot be stored",
                      printable(tensor.name), dtype_name(tensor.dtype), shape_text(tensor.shape));
  return *bits / 8;
}

// Writes all of the bytes, or fails.
Result<Done> write_all(int fd, ByteSpan bytes, const std::string& name) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      return make_error(ErrorCode::file_write, "{}: cannot be written: {}", name,
                        std::generic_category().message(errno));
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return Done{};
}

// Refuses what readers of the format, this one included, would refuse.
Result<Done> check_declarations(const std::vector<TensorDeclaration>& tensors,
                                const std::vector<std::pair<std::string, std::string>>& metadata) {
  const auto is_utf8 = [](const std::string& text) {
    return simdjson::validate_utf8(text.data(), text.size());
  };
  std::unordered_set<std::string_view> names = {"__metadata__"};
  for (const TensorDeclaration& tensor : tensors) {
    if (!names.insert(tensor.name).second)
      return make_error(ErrorCode::header_duplicate,
                        "tensor {}: the name is taken already, so it cannot be written",
                        printable(tensor.name));
    if (!is_utf8(tensor.name))
      return make_error(ErrorCode::header_json,
                        "tensor {}: the name is not UTF-8, as a safetensors header must be",
                        printable(tensor.name));
    if (tensor.shape.size() > max_rank)
      return make_error(ErrorCode::header_shape,
                        "tensor {}: has {} dimensions, at most {} are read", printable(tensor.name),
                        tensor.shape.size(), max_rank);
  }
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, value] : metadata) {
    if (!keys.insert(key).second)
      return make_error(ErrorCode::header_duplicate, "__metadata__.{}: the key is taken already",
                        printable(key));
    if (!is_utf8(key) || !is_utf8(value))
      return make_error(ErrorCode::header_json,
                        "__metadata__.{}: is not UTF-8, as a safetensors header must be",
                        printable(key));
  }
  return Done{};
}

// Follows links, so that what a link points to is replaced and not the link. Only a file may be
// replaced: a rename over a device or a pipe would take its place. The permissions of the file that
// is there, if one is.
Result<std::optional<mode_t>> resolve_target(std::filesystem::path& target,
                                             const std::string& name) {
  std::error_code error;
  if (std::filesystem::is_symlink(target, error)) {
    target = std::filesystem::weakly_canonical(target, error);
    if (error)
      return make_error(ErrorCode::file_write, "{}: is a link that leads nowhere: {}", name,
                        error.message());
  }
  struct stat status;
  if (::lstat(target.c_str(), &status) != 0) return std::optional<mode_t>();
  if (S_ISREG(status.st_mode)) return std::optional<mode_t>(status.st_mode & 07777);
  return make_error(ErrorCode::file_write, "{}: is {}, not a file that could be replaced", name,
                    S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
}

}  // namespace

Result<std::vector<std::byte>> make_header(
    const std::vector<TensorDeclaration>& tensors,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  PARFAIT_CHECK_OK(check_declarations(tensors, metadata));
  std::string json = "{";
  if (!metadata.empty()) {
    json += "\"__metadata__\":{";
    for (std::size_t i = 0; i < metadata.size(); ++i) {
      if (i) json += ',';
      io::append_json_string(json, metadata[i].first);
      json += ':';
      io::append_json_string(json, metadata[i].second);
    }
    json += '}';
  }
  std::uint64_t offset = 0;
  for (const TensorDeclaration& tensor : tensors) {
    PARFAIT_TRY(const std::uint64_t bytes, bytes_of(tensor));
    const auto end = checked_add(offset, bytes);
    if (!end) return make_error(ErrorCode::header_shape, "the tensors are larger than any file");
    if (json.size() > 1) json += ',';
    io::append_json_string(json, tensor.name);
    json += fmt::format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
                        dtype_name(tensor.dtype), fmt::join(tensor.shape, ","), offset, *end);
    offset = *end;
  }
  json += '}';
  json.resize(round_up(json.size() + 8, data_alignment) - 8, ' ');
  std::vector<std::byte> header(8 + json.size());
  store_at<std::uint64_t>(header.data(), 0, json.size());
  std::memcpy(header.data() + 8, json.data(), json.size());
  return header;
}

struct Writer::State {
  std::filesystem::path target, temporary;
  int fd = -1;
  std::uint64_t written = 0, expected = 0;
  bool failed = false;  // an append did, so the temporary is not what was asked for

  ~State() {
    if (fd >= 0) ::close(fd);
    if (!temporary.empty()) ::unlink(temporary.c_str());
  }
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

Result<Writer> Writer::create(const std::filesystem::path& target,
                              const std::vector<TensorDeclaration>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata) {
  PARFAIT_TRY(const std::vector<std::byte> header, make_header(tensors, metadata));
  auto state = std::make_unique<State>();
  state->target = target;
  for (const TensorDeclaration& tensor : tensors) {
    PARFAIT_TRY(const std::uint64_t bytes, bytes_of(tensor));
    state->expected += bytes;
  }
  const std::string name = printable(target.string(), 1000);
  PARFAIT_TRY(const std::optional<mode_t> old_mode, resolve_target(state->target, name));
  static std::atomic<unsigned> counter{0};
  std::string temporary;
  // Another name where a killed process of the same number left its temporary behind.
  for (int attempt = 0; attempt < 100; ++attempt) {
    temporary = fmt::format("{}.partial-{}-{}", state->target.string(), ::getpid(), counter++);
    state->fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (state->fd >= 0 || errno != EEXIST) break;
  }
  if (state->fd < 0)
    return make_error(ErrorCode::file_write, "{}: cannot be created: {}", name,
                      std::generic_category().message(errno));
  state->temporary = temporary;
  if (old_mode)
    ::fchmod(state->fd, *old_mode);  // whoever could not read the old file cannot read this
  PARFAIT_CHECK_OK(write_all(state->fd, header, name));
  return Writer(std::move(state));
}

Result<Done> Writer::append(ByteSpan bytes) {
  const std::string name = printable(state_->target.string(), 1000);
  if (bytes.size() > state_->expected - state_->written) {
    state_->failed = true;
    return make_error(ErrorCode::file_write, "{}: more bytes were written than its header declares",
                      name);
  }
  auto written = write_all(state_->fd, bytes, name);
  state_->written += bytes.size();
  state_->failed |= !written.ok();
  return written;
}

Result<Done> Writer::finish() {
  State& state = *state_;
  const std::string name = printable(state.target.string(), 1000);
  if (state.failed)
    return make_error(ErrorCode::file_write,
                      "{}: was not put in place because an earlier write to it failed", name);
  if (state.written != state.expected)
    return make_error(ErrorCode::file_write,
                      "{}: {} bytes were written where its header declares {}", name, state.written,
                      state.expected);
  if (::fsync(state.fd) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be written out: {}", name,
                      std::generic_category().message(errno));
  const int closed = ::close(std::exchange(state.fd, -1));
  if (closed != 0 || ::rename(state.temporary.c_str(), state.target.c_str()) != 0)
    return make_error(ErrorCode::file_write, "{}: cannot be put in place: {}", name,
                      std::generic_category().message(errno));
  state.temporary.clear();
  // Make the new name durable too; a folder that cannot be synced does not undo the file.
  const std::filesystem::path folder =
      state.target.has_parent_path() ? state.target.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  return Done{};
}

}  // namespace parfait::container
