#include "cli/tensors.h"

#include <cstring>

namespace parfait::cli {
namespace {

template <class Integer>
std::string integer_text(std::span<const std::byte> bytes) {
  Integer value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return fmt::format("{}", value);
}

std::string value_text(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::boolean:
      return bytes[0] == std::byte{0} ? "false" : "true";
    case DType::u8:
      return fmt::format("{}", std::to_integer<unsigned>(bytes[0]));
    case DType::i8:
      return fmt::format("{}", static_cast<int>(static_cast<std::int8_t>(bytes[0])));
    case DType::i16:
      return integer_text<std::int16_t>(bytes);
    case DType::u16:
      return integer_text<std::uint16_t>(bytes);
    case DType::i32:
      return integer_text<std::int32_t>(bytes);
    case DType::u32:
      return integer_text<std::uint32_t>(bytes);
    case DType::i64:
      return integer_text<std::int64_t>(bytes);
    case DType::u64:
      return integer_text<std::uint64_t>(bytes);
    case DType::f64: {
      double value;
      std::memcpy(&value, bytes.data(), sizeof value);
      return fmt::format("{:#}", value);
    }
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
      return fmt::format("{:#}", load_float(dtype, bytes.data(), 0));
    default:
      return {};
  }
}

}  // namespace

std::optional<std::string> scalar_text(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  if (dtype_bits(tensor.dtype) < 8 || tensor.bytes * 8 != dtype_bits(tensor.dtype)) return {};
  std::string text = value_text(tensor.dtype, get(read_tensor(checkpoint, tensor)));
  if (text.empty()) return {};
  return text;
}

Json tensor_json(const Checkpoint& checkpoint, const TensorInfo& tensor, Values values) {
  Json json = {{"name", tensor.name},
               {"dtype", dtype_name(tensor.dtype)},
               {"shape", to_json(tensor.shape)},
               {"bytes", tensor.bytes},
               {"offset", tensor.offset},
               {"file", tensor.shard}};
  if (values == Values::read)
    if (const auto text = scalar_text(checkpoint, tensor)) json["value"] = *text;
  return json;
}

}  // namespace parfait::cli
