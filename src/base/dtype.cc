#include "parfait/dtype.h"

#include <cstddef>

namespace parfait {
namespace {

struct DTypeRow {
  std::string_view name;
  std::uint32_t bits;
};
// In the order of the enumeration.
constexpr DTypeRow rows[dtype_count] = {
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64}};
static_assert(rows[dtype_count - 1].bits == 64);

}  // namespace

std::string_view dtype_name(DType dtype) { return rows[static_cast<std::size_t>(dtype)].name; }

std::uint32_t dtype_bits(DType dtype) { return rows[static_cast<std::size_t>(dtype)].bits; }

std::optional<DType> parse_dtype(std::string_view name) {
  for (int i = 0; i < dtype_count; ++i)
    if (rows[i].name == name) return static_cast<DType>(i);
  if (name == "F8_E4M3FN") return DType::f8_e4m3;
  return std::nullopt;
}

}  // namespace parfait
