#include "convert/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/bytes.h"
#include "base/checked.h"
#include "base/floats.h"

namespace parfait::convert::gguf {
namespace {

// --- Blocks ---

constexpr std::uint64_t q8_bytes = 34, q4_bytes = 18;

std::string refusal(const formats::WeightShape& shape, const formats::EncodeSettings&) {
  if (shape.columns % block == 0) return {};
  return fmt::format("K = {} is not a multiple of its blocks of {}", shape.columns, block);
}

template <std::uint64_t block_bytes>
std::vector<formats::EncodedTensor> tensors(const formats::WeightShape& shape,
                                            const formats::EncodeSettings&) {
  return {{"weight", DType::u8, {shape.rows, shape.columns / block * block_bytes}}};
}

std::string no_marker(const formats::WeightShape&, const formats::EncodeSettings&) { return {}; }

// ggml converts what is no number or out of range as the processor does; x86 makes it 0.
int whole(float value) { return value > -1e9f && value < 1e9f ? static_cast<int>(value) : 0; }

void encode_q8(const float* x, std::byte* out) {
  float largest = 0;
  for (std::uint64_t j = 0; j < block; ++j) largest = std::max(largest, std::fabs(x[j]));
  const float d = largest / 127.0f;
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  store_at(out, 0, float_to_f16(d));
  for (std::uint64_t j = 0; j < block; ++j)
    out[2 + j] = static_cast<std::byte>(whole(std::round(x[j] * inverse)));
}

// The scale's sign is that of the value furthest from 0, which becomes -8 exactly.
void encode_q4(const float* x, std::byte* out) {
  float furthest = 0;
  for (std::uint64_t j = 0; j < block; ++j)
    if (std::fabs(furthest) < std::fabs(x[j])) furthest = x[j];
  const float d = furthest / -8;
  const float inverse = d != 0 ? 1.0f / d : 0.0f;
  store_at(out, 0, float_to_f16(d));
  const auto code = [&](float value) {
    return static_cast<unsigned>(std::min(15, whole(value * inverse + 8.5f)));
  };
  for (std::uint64_t j = 0; j < block / 2; ++j)
    out[2 + j] = static_cast<std::byte>(code(x[j]) | code(x[j + block / 2]) << 4);
}

template <std::uint64_t block_bytes, void (*encode_block)(const float*, std::byte*)>
void encode(const formats::WeightShape& shape, const formats::EncodeSettings&,
            const formats::Survey&, std::uint64_t first, std::uint64_t count, float* w,
            const formats::EncodeBuffers& buffers) {
  const std::uint64_t blocks = shape.columns / block;
  std::byte* out = buffers.tensors[0] + (first - buffers.first_row) * blocks * block_bytes;
  for (std::uint64_t b = 0; b < count * blocks; ++b)
    encode_block(w + b * block, out + b * block_bytes);
}

void decode_q8(const std::byte* rows, std::uint64_t count, std::uint64_t columns, float* out) {
  for (std::uint64_t b = 0; b < count * (columns / block); ++b, rows += q8_bytes) {
    const float d = f16_to_float(load_at<std::uint16_t>(rows));
    for (std::uint64_t j = 0; j < block; ++j)
      *out++ = d * static_cast<float>(static_cast<std::int8_t>(rows[2 + j]));
  }
}

void decode_q4(const std::byte* rows, std::uint64_t count, std::uint64_t columns, float* out) {
  for (std::uint64_t b = 0; b < count * (columns / block); ++b, rows += q4_bytes) {
    const float d = f16_to_float(load_at<std::uint16_t>(rows));
    for (std::uint64_t j = 0; j < block; ++j) {
      const unsigned byte = std::to_integer<unsigned>(rows[2 + j % (block / 2)]);
      const int code = static_cast<int>(j < block / 2 ? byte & 15 : byte >> 4);
      *out++ = d * static_cast<float>(code - 8);
    }
  }
}

// --- The header ---

class HeaderText {
 public:
  void number(std::uint64_t value, std::size_t size) {
    for (std::size_t i = 0; i < size; ++i)
      bytes.push_back(static_cast<std::byte>(value >> (8 * i) & 255));
  }
  void u32(std::uint64_t value) { number(value, 4); }
  void u64(std::uint64_t value) { number(value, 8); }
  void text(std::string_view value) {
    u64(value.size());
    for (const char c : value) bytes.push_back(static_cast<std::byte>(c));
  }
  void value(const Value& value) {
    constexpr std::uint32_t type_u32 = 4, type_i32 = 5, type_f32 = 6, type_string = 8,
                            type_array = 9;
    if (const auto* integer = std::get_if<std::uint32_t>(&value)) {
      u32(type_u32);
      u32(*integer);
    } else if (const auto* real = std::get_if<float>(&value)) {
      u32(type_f32);
      u32(std::bit_cast<std::uint32_t>(*real));
    } else if (const auto* string = std::get_if<std::string>(&value)) {
      u32(type_string);
      text(*string);
    } else if (const auto* array = std::get_if<std::vector<std::int32_t>>(&value)) {
      u32(type_array);
      u32(type_i32);
      u64(array->size());
      for (const std::int32_t one : *array) u32(static_cast<std::uint32_t>(one));
    }
  }
  void align() { bytes.resize(round_up(bytes.size(), alignment)); }

  std::vector<std::byte> bytes;
};

}  // namespace

std::optional<Type> type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return Type::f32;
    case DType::f16:
      return Type::f16;
    case DType::bf16:
      return Type::bf16;
    case DType::f64:
      return Type::f64;
    case DType::i8:
      return Type::i8;
    case DType::i16:
      return Type::i16;
    case DType::i32:
      return Type::i32;
    case DType::i64:
      return Type::i64;
    default:
      return {};
  }
}

std::span<const BlockType> block_types() {
  static const BlockType types[] = {
      {"q8_0",
       Type::q8_0,
       7,
       {refusal, tensors<q8_bytes>, no_marker, nullptr, encode<q8_bytes, encode_q8>},
       decode_q8},
      {"q4_0",
       Type::q4_0,
       2,
       {refusal, tensors<q4_bytes>, no_marker, nullptr, encode<q4_bytes, encode_q4>},
       decode_q4},
  };
  return types;
}

Header make_header(const std::vector<Tensor>& tensors, const Keys& keys) {
  HeaderText text;
  for (const char c : std::string_view("GGUF")) text.bytes.push_back(static_cast<std::byte>(c));
  text.u32(3);
  text.u64(tensors.size());
  text.u64(keys.size());
  for (const auto& [key, value] : keys) {
    text.text(key);
    text.value(value);
  }
  Header header;
  std::uint64_t offset = 0;
  for (const Tensor& tensor : tensors) {
    text.text(tensor.name);
    text.u32(tensor.shape.size());
    for (auto axis = tensor.shape.rbegin(); axis != tensor.shape.rend(); ++axis) text.u64(*axis);
    text.u32(static_cast<std::uint32_t>(tensor.type));
    text.u64(offset);
    header.offsets.push_back(offset);
    offset = round_up(offset + tensor.bytes, alignment);
  }
  text.align();
  header.bytes = std::move(text.bytes);
  for (std::uint64_t& one : header.offsets) one += header.bytes.size();
  header.file_bytes = header.bytes.size() + offset;
  return header;
}

}  // namespace parfait::convert::gguf
