// The GGUF container (version 3) and the block types of it that are written here.
//
// A file is: "GGUF", version, counts of tensors and keys, the keys, the tensors' names, shapes,
// types and offsets, padding, and the tensors' data, each aligned to 32 bytes; little-endian.
// A shape has the fastest axis first. Blocks, of 32 values of one row each:
//
//   Q8_0  F16 d, 32 × i8 q                  value = d · q
//   Q4_0  F16 d, 16 bytes: value j in the low four bits of byte j, value j + 16 in the high
//         four                              value = d · (q − 8)
//
// Both are made as ggml's reference makes them, bit for bit.
#ifndef PARFAIT_CONVERT_GGUF_H_
#define PARFAIT_CONVERT_GGUF_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "formats/encode.h"

namespace parfait::convert::gguf {

// ggml's numbers.
enum class Type : std::uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q8_0 = 8,
  i8 = 24,
  i16 = 25,
  i32 = 26,
  i64 = 27,
  f64 = 28,
  bf16 = 30,
};

// The type of values of a dtype; nothing where GGUF has none.
std::optional<Type> type_of(DType dtype);

// What an encoder of GGUF's makes, and how to read it again.
struct BlockType {
  std::string_view name;  // "q8_0"
  Type type;
  std::uint32_t file_type;  // general.file_type
  formats::Encoder encoder;
  // Rows of encoded bytes to floats.
  void (*decode)(const std::byte* rows, std::uint64_t count, std::uint64_t columns, float* out);
};
std::span<const BlockType> block_types();  // q8_0, q4_0

inline constexpr std::uint64_t block = 32;      // values
inline constexpr std::uint64_t alignment = 32;  // bytes
inline constexpr std::size_t most_dimensions = 4;
inline constexpr std::size_t longest_name = 63;  // that ggml's own reader takes

struct Tensor {
  std::string name;
  Type type = Type::f32;
  std::vector<std::uint64_t> shape;  // slowest axis first, as safetensors has it; at most 4
  std::uint64_t bytes = 0;
};
using Value = std::variant<std::uint32_t, float, std::string, std::vector<std::int32_t>>;
using Keys = std::vector<std::pair<std::string, Value>>;

struct Header {
  std::vector<std::byte> bytes;        // with the padding behind it
  std::vector<std::uint64_t> offsets;  // of each tensor's data in the file
  std::uint64_t file_bytes = 0;
};
Header make_header(const std::vector<Tensor>& tensors, const Keys& keys);

}  // namespace parfait::convert::gguf

#endif  // PARFAIT_CONVERT_GGUF_H_
