#include "container/header.h"

#include <simdjson.h>

#include <algorithm>
#include <optional>
#include <unordered_set>

#include "base/checked.h"
#include "base/result.h"

namespace parfait::container {
namespace {

namespace ondemand = simdjson::ondemand;

class HeaderParser {
 public:
  HeaderParser(std::string file, std::pmr::monotonic_buffer_resource& arena, Header& out)
      : file_(std::move(file)), arena_(arena), out_(out) {}

  Result<Done> parse(const simdjson::padded_string& json) {
    ondemand::parser parser;
    ondemand::document document;
    if (const auto error = parser.iterate(json).get(document)) return bad_json(error);
    ondemand::object root;
    if (const auto error = document.get_object().get(root)) return bad_json(error);
    for (auto field : root) {
      std::string_view key;
      if (const auto error = field.unescaped_key().get(key)) return bad_json(error);
      ondemand::value value;
      if (const auto error = field.value().get(value)) return bad_json(error);
      if (key == "__metadata__") {
        PARFAIT_CHECK_OK(parse_metadata(value));
      } else {
        PARFAIT_CHECK_OK(parse_tensor(keep(key), value));
      }
    }
    if (document.current_location().error() != simdjson::OUT_OF_BOUNDS)
      return make_error(ErrorCode::header_json, "{}: the header goes on behind its JSON object",
                        file_);
    return Done{};
  }

 private:
  Error bad_json(simdjson::error_code error) const {
    return make_error(ErrorCode::header_json, "{}: the header is not valid JSON: {}", file_,
                      simdjson::error_message(error));
  }
  Error bad_entry(std::string_view tensor, std::string_view what, std::string_view expected) const {
    return make_error(ErrorCode::header_json, "{}: tensor {}: its {} in the header is not {}",
                      file_, printable(tensor), what, expected);
  }

  std::string_view keep(std::string_view text) {
    char* copy = static_cast<char*>(arena_.allocate(std::max<std::size_t>(text.size(), 1), 1));
    std::copy(text.begin(), text.end(), copy);
    return {copy, text.size()};
  }

  Result<Done> parse_metadata(ondemand::value& value) {
    if (has_metadata_)
      return make_error(ErrorCode::header_duplicate, "{}: __metadata__ stands twice in the header",
                        file_);
    has_metadata_ = true;
    ondemand::object object;
    if (value.get_object().get(object))
      return make_error(ErrorCode::header_json, "{}: __metadata__ is not an object of strings",
                        file_);
    std::unordered_set<std::string> keys;
    for (auto field : object) {
      std::string_view key, text;
      if (const auto error = field.unescaped_key().get(key)) return bad_json(error);
      std::string name(key);
      if (field.value().get_string().get(text))
        return make_error(ErrorCode::header_json, "{}: __metadata__.{} is not a string", file_,
                          printable(name));
      if (!keys.insert(name).second)
        return make_error(ErrorCode::header_duplicate,
                          "{}: __metadata__.{} stands twice in the header", file_, printable(name));
      out_.metadata.emplace_back(std::move(name), std::string(text));
    }
    return Done{};
  }

  Result<Done> parse_tensor(std::string_view name, ondemand::value& value) {
    ondemand::object object;
    if (value.get_object().get(object)) return bad_entry(name, "entry", "an object");
    TensorInfo tensor;
    tensor.name = name;
    bool has_dtype = false, has_shape = false, has_offsets = false;
    std::uint64_t begin = 0, end = 0;
    for (auto field : object) {
      std::string_view key;
      if (const auto error = field.unescaped_key().get(key)) return bad_json(error);
      bool* seen = key == "dtype"          ? &has_dtype
                   : key == "shape"        ? &has_shape
                   : key == "data_offsets" ? &has_offsets
                                           : nullptr;
      if (!seen)
        return make_error(ErrorCode::header_json,
                          "{}: tensor {}: the header has an unknown key \"{}\" there", file_,
                          printable(name), printable(key));
      if (*seen)
        return make_error(ErrorCode::header_duplicate, "{}: tensor {}: key \"{}\" stands twice",
                          file_, printable(name), key);
      *seen = true;
      ondemand::value member;
      if (const auto error = field.value().get(member)) return bad_json(error);
      if (seen == &has_dtype) {
        PARFAIT_TRY(tensor.dtype, parse_dtype_of(name, member));
      } else if (seen == &has_shape) {
        PARFAIT_TRY(tensor.shape, parse_shape(name, member));
      } else {
        PARFAIT_CHECK_OK(parse_offsets(name, member, begin, end));
      }
    }
    if (!has_dtype || !has_shape || !has_offsets)
      return make_error(ErrorCode::header_json, "{}: tensor {}: the header lacks its {}", file_,
                        printable(name),
                        !has_dtype   ? "dtype"
                        : !has_shape ? "shape"
                                     : "data_offsets");
    return place(tensor, begin, end);
  }

  Result<DType> parse_dtype_of(std::string_view name, ondemand::value& value) {
    std::string_view text;
    if (value.get_string().get(text)) return bad_entry(name, "dtype", "a string");
    const std::optional<DType> dtype = parse_dtype(text);
    if (!dtype)
      return make_error(ErrorCode::header_dtype,
                        "{}: tensor {}: dtype \"{}\" is none that safetensors defines", file_,
                        printable(name), printable(text));
    return *dtype;
  }

  Result<std::span<const std::uint64_t>> parse_shape(std::string_view name,
                                                     ondemand::value& value) {
    ondemand::array array;
    if (value.get_array().get(array)) return bad_entry(name, "shape", "an array of whole numbers");
    std::uint64_t shape[max_rank];
    std::size_t rank = 0;
    for (auto element : array) {
      std::uint64_t dimension;
      if (element.get_uint64().get(dimension))
        return bad_entry(name, "shape", "an array of whole numbers");
      if (rank == max_rank)
        return make_error(ErrorCode::header_shape, "{}: tensor {}: has more than {} dimensions",
                          file_, printable(name), max_rank);
      shape[rank++] = dimension;
    }
    auto* copy = static_cast<std::uint64_t*>(arena_.allocate(
        std::max<std::size_t>(rank, 1) * sizeof(std::uint64_t), alignof(std::uint64_t)));
    std::copy(shape, shape + rank, copy);
    return std::span<const std::uint64_t>(copy, rank);
  }

  Result<Done> parse_offsets(std::string_view name, ondemand::value& value, std::uint64_t& begin,
                             std::uint64_t& end) {
    constexpr std::string_view expected = "a pair of whole numbers";
    ondemand::array array;
    if (value.get_array().get(array)) return bad_entry(name, "data_offsets", expected);
    std::size_t count = 0;
    for (auto element : array) {
      std::uint64_t number;
      if (element.get_uint64().get(number) || count == 2)
        return bad_entry(name, "data_offsets", expected);
      (count++ == 0 ? begin : end) = number;
    }
    if (count != 2) return bad_entry(name, "data_offsets", expected);
    return Done{};
  }

  // Offsets relative to the data become offsets in the file, once they agree with dtype and shape.
  Result<Done> place(TensorInfo tensor, std::uint64_t begin, std::uint64_t end) {
    const auto elements = checked_product(tensor.shape);
    const auto bits = elements ? checked_mul(*elements, dtype_bits(tensor.dtype)) : std::nullopt;
    if (!bits)
      return make_error(ErrorCode::header_shape,
                        "{}: tensor {}: a tensor of {} {} is larger than any file", file_,
                        printable(tensor.name), dtype_name(tensor.dtype), shape_text(tensor.shape));
    if (*bits % 8 != 0)
      return make_error(ErrorCode::header_shape, "{}: tensor {}: {} {} does not fill whole bytes",
                        file_, printable(tensor.name), dtype_name(tensor.dtype),
                        shape_text(tensor.shape));
    if (begin > end || end - begin != *bits / 8)
      return make_error(ErrorCode::header_offsets,
                        "{}: tensor {}: data_offsets [{}, {}] do not span the {} bytes of {} {}",
                        file_, printable(tensor.name), begin, end, *bits / 8,
                        dtype_name(tensor.dtype), shape_text(tensor.shape));
    const auto offset = checked_add(begin, 8 + out_.header_bytes);
    if (!offset || !checked_add(*offset, *bits / 8))
      return make_error(ErrorCode::header_offsets,
                        "{}: tensor {}: data_offsets [{}, {}] lie past 2^64 bytes", file_,
                        printable(tensor.name), begin, end);
    tensor.offset = *offset;
    tensor.bytes = *bits / 8;
    out_.tensors.push_back(tensor);
    return Done{};
  }

  const std::string file_;
  std::pmr::monotonic_buffer_resource& arena_;
  Header& out_;
  bool has_metadata_ = false;
};

// A name that stands twice makes offsets disagree too, and is the better reason to give.
std::optional<Error> duplicate_name(const std::string& file, const Header& header) {
  std::unordered_set<std::string_view> names;
  for (const TensorInfo& tensor : header.tensors)
    if (!names.insert(tensor.name).second)
      return make_error(ErrorCode::header_duplicate, "{}: tensor {} stands twice in the header",
                        file, printable(tensor.name));
  return std::nullopt;
}

// The tensors, sorted by offset, must touch each other and fill the file.
Result<Done> check_coverage(const io::Reader& reader, const std::string& file, Header& header) {
  auto& tensors = header.tensors;
  const auto by_offset = [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  };
  if (!std::is_sorted(tensors.begin(), tensors.end(), by_offset))
    std::stable_sort(tensors.begin(), tensors.end(), by_offset);
  std::uint64_t at = 8 + header.header_bytes;
  const TensorInfo* before = nullptr;
  const TensorInfo* cut = nullptr;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.offset < at && tensor.bytes == 0)
      return make_error(ErrorCode::header_overlap, "{}: the empty tensor {} lies inside tensor {}",
                        file, printable(tensor.name),
                        printable(before ? before->name : tensor.name));
    if (tensor.offset < at)
      return make_error(ErrorCode::header_overlap, "{}: tensors {} and {} share {} bytes", file,
                        printable(before ? before->name : tensor.name), printable(tensor.name),
                        std::min(at - tensor.offset, tensor.bytes));
    if (tensor.offset > at)
      return make_error(ErrorCode::header_hole,
                        "{}: {} bytes in front of tensor {} belong to no tensor", file,
                        tensor.offset - at, printable(tensor.name));
    at = tensor.offset + tensor.bytes;
    before = &tensor;
    if (!cut && at > reader.size()) cut = &tensor;
  }
  if (cut)
    return make_error(
        ErrorCode::file_truncated,
        "{}: is {} bytes long but its header needs {}: {} bytes are missing, from tensor {} on, "
        "as after an interrupted download",
        file, reader.size(), at, at - reader.size(), printable(cut->name));
  header.trailing_bytes = reader.size() - at;
  return Done{};
}

// Whether a file starts as safetensors files do: a length that a header can have, and its brace.
// The length's bytes may spell another kind's magic number (640 is a pickle's), but no other kind
// has a small number there and the brace behind it.
bool starts_like_safetensors(std::string_view start, std::uint64_t file_bytes,
                             std::uint64_t max_header_bytes) {
  if (start.size() < 8) return start.find('\0') != std::string_view::npos;
  std::uint64_t length;
  std::memcpy(&length, start.data(), sizeof length);
  return (start.size() == 8 || start[8] == '{') && length >> 32 == 0 &&
         length <= std::max(max_header_bytes, file_bytes - 8);
}

// H and what can be said without parsing.
Result<std::uint64_t> read_header_length(const io::Reader& reader, const std::string& file,
                                         const OpenOptions& options) {
  std::vector<std::byte> scratch;
  const std::uint64_t start_bytes = std::min<std::uint64_t>(reader.size(), 1024);
  PARFAIT_TRY(const ByteSpan start, reader.read(0, start_bytes, scratch));
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  const std::string kind = recognise_kind(text);
  if (!kind.empty() && !starts_like_safetensors(text, reader.size(), options.max_header_bytes))
    return make_error(ErrorCode::file_wrong_kind, "{}: is not a safetensors file but {}", file,
                      kind);
  if (reader.size() == 0) return make_error(ErrorCode::file_too_small, "{}: is empty", file);
  if (reader.size() < 8)
    return make_error(
        ErrorCode::file_too_small,
        "{}: is {} bytes long, too short for a safetensors file's 8-byte header length", file,
        reader.size());
  const auto length = load_at<std::uint64_t>(start.data());
  const bool plausible = reader.size() == 8 || text[8] == '{';
  if (!plausible)
    return make_error(ErrorCode::file_wrong_kind,
                      "{}: is not a safetensors file: its header does not start with '{{'", file);
  if (length > options.max_header_bytes)
    return make_error(ErrorCode::header_too_large,
                      "{}: the header says that it is {} bytes long, above the limit of {} "
                      "(--max-header raises it)",
                      file, length, options.max_header_bytes);
  if (length > reader.size() - 8)
    return make_error(
        ErrorCode::file_truncated,
        "{}: is {} bytes long but its header alone needs {}: {} bytes of the header are missing, "
        "as after an interrupted download",
        file, reader.size(), length + 8, length + 8 - reader.size());
  if (length < 2)
    return make_error(ErrorCode::header_json, "{}: the header is {} bytes long", file, length);
  return length;
}

}  // namespace

Result<Header> read_header(const io::Reader& reader, const OpenOptions& options,
                           std::pmr::monotonic_buffer_resource& arena) {
  const std::string file = printable(reader.name(), 1000);
  Header header;
  PARFAIT_TRY(header.header_bytes, read_header_length(reader, file, options));
  {
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan bytes, reader.read(8, header.header_bytes, scratch));
    const simdjson::padded_string json(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!json.data())
      return make_error(ErrorCode::out_of_memory, "{}: no memory for its header", file);
    PARFAIT_CHECK_OK(HeaderParser(file, arena, header).parse(json));
  }
  if (auto covered = check_coverage(reader, file, header); !covered) {
    if (auto duplicate = duplicate_name(file, header)) return *std::move(duplicate);
    return std::move(covered).error();
  }
  return header;
}

}  // namespace parfait::container
