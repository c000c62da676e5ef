#include "container/writer.h"

#include <simdjson.h>

#include <unordered_set>

#include "base/checked.h"
#include "base/result.h"
#include "container/tensor_index.h"
#include "io/json.h"
#include "io/replacement.h"
#include "parfait/checkpoint.h"

namespace parfait::container {
namespace {

constexpr std::uint64_t data_alignment = 64;

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

}  // namespace

Result<std::uint64_t> tensor_bytes(const TensorDeclaration& tensor) {
  const auto elements = checked_product(tensor.shape);
  const auto bits = elements ? checked_mul(*elements, dtype_bits(tensor.dtype)) : std::nullopt;
  if (!bits || *bits % 8 != 0)
    return make_error(ErrorCode::header_shape, "tensor {}: {} {} cannot be stored",
                      printable(tensor.name), dtype_name(tensor.dtype), shape_text(tensor.shape));
  return *bits / 8;
}

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
    PARFAIT_TRY(const std::uint64_t bytes, tensor_bytes(tensor));
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
  io::Replacement file;
  std::uint64_t written = 0, expected = 0;
};

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::Writer(Writer&&) noexcept = default;
Writer& Writer::operator=(Writer&&) noexcept = default;
Writer::~Writer() = default;

Result<Writer> Writer::create(const std::filesystem::path& target,
                              const std::vector<TensorDeclaration>& tensors,
                              const std::vector<std::pair<std::string, std::string>>& metadata) {
  PARFAIT_TRY(const std::vector<std::byte> header, make_header(tensors, metadata));
  std::uint64_t expected = 0;
  for (const TensorDeclaration& tensor : tensors) {
    PARFAIT_TRY(const std::uint64_t bytes, tensor_bytes(tensor));
    expected += bytes;
  }
  PARFAIT_TRY(io::Replacement file, io::Replacement::create(target, io::safetensors_file));
  PARFAIT_CHECK_OK(file.append(header));
  return Writer(std::make_unique<State>(State{std::move(file), 0, expected}));
}

Result<Done> Writer::append(ByteSpan bytes) {
  if (bytes.size() > state_->expected - state_->written) {
    state_->file.spoil();
    return make_error(ErrorCode::file_write, "{}: more bytes were written than its header declares",
                      state_->file.name());
  }
  state_->written += bytes.size();
  return state_->file.append(bytes);
}

Result<Done> Writer::finish() {
  if (!state_->file.failed() && state_->written != state_->expected)
    return make_error(ErrorCode::file_write,
                      "{}: {} bytes were written where its header declares {}", state_->file.name(),
                      state_->written, state_->expected);
  return state_->file.finish();
}

}  // namespace parfait::container
