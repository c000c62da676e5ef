// Dtypes, the names of public enumerations, and what the processor is asked.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "base/cpu.h"
#include "parfait/checkpoint.h"
#include "parfait/dtype.h"
#include "parfait/plan.h"

namespace parfait {
namespace {

TEST(DTypes, names_and_widths_in_the_order_of_safetensors) {
  const struct {
    const char* name;
    std::uint32_t bits;
  } expected[] = {{"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6},
                  {"U8", 8},      {"I8", 8},          {"F8_E5M2", 8},     {"F8_E4M3", 8},
                  {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},
                  {"U16", 16},    {"F16", 16},        {"BF16", 16},       {"I32", 32},
                  {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},
                  {"I64", 64},    {"U64", 64}};
  static_assert(std::size(expected) == dtype_count);
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_name(dtype), expected[i].name);
    EXPECT_EQ(dtype_bits(dtype), expected[i].bits);
    EXPECT_EQ(parse_dtype(expected[i].name), dtype);
  }
  EXPECT_EQ(dtype_name(DType::f8_e4m3), "F8_E4M3");
  EXPECT_EQ(dtype_name(DType::u64), "U64");
}

TEST(DTypes, other_spellings) {
  EXPECT_EQ(parse_dtype("F8_E4M3FN"), DType::f8_e4m3);
  for (const char* name : {"", "f32", "F8", "F8_E4M3 ", "FLOAT32", "E8M0", "F8_E5M2FN"})
    EXPECT_EQ(parse_dtype(name), std::nullopt) << name;
}

TEST(Names, of_enumerations) {
  EXPECT_EQ(layer_kind_name(LayerKind::linear), "linear");
  EXPECT_EQ(layer_kind_name(LayerKind::embedding), "embedding");
  EXPECT_EQ(layer_kind_name(LayerKind::convolution), "convolution");
  EXPECT_EQ(layer_kind_name(LayerKind::experts), "experts");
  EXPECT_EQ(method_name(Method::int8), "int8");
  EXPECT_EQ(method_name(Method::decode_only), "decode only");
  EXPECT_EQ(split_axis_name(SplitAxis::whole), "whole");
  EXPECT_EQ(split_axis_name(SplitAxis::replicated), "replicated");
}

TEST(Names, of_instruction_sets) {
  for (Isa isa : {Isa::reference, Isa::avx2, Isa::avx_vnni, Isa::avx512_vnni, Isa::avx512_bf16,
                  Isa::neon_dotprod, Isa::neon_i8mm})
    EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_EQ(parse_isa("neon"), std::nullopt);
  EXPECT_EQ(parse_isa(""), std::nullopt);
}

TEST(Names, of_shapes) {
  const std::uint64_t shape[] = {21504, 5376};
  EXPECT_EQ(shape_text(shape), "[21504, 5376]");
  EXPECT_EQ(shape_text({}), "[]");
}

TEST(Cpu, features_include_each_other) {
  const CpuFeatures& features = cpu_features();
  EXPECT_TRUE(features.avx2 || !features.avx_vnni);
  EXPECT_TRUE(features.avx2 || !features.avx512_vnni);
  EXPECT_TRUE(features.avx512_vnni || !features.avx512_bf16);
  EXPECT_TRUE(features.neon_dotprod || !features.neon_i8mm);
  EXPECT_EQ(&features, &cpu_features());
}

TEST(Cpu, the_machine_always_has_the_reference) {
  const std::vector<Isa> isas = machine_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::reference);
  EXPECT_EQ(std::ranges::count(isas, Isa::avx512_vnni), cpu_features().avx512_vnni ? 1 : 0);
  for (Isa isa : isas)  // what an instruction set includes is there with it
    for (Isa part : isas_within(isa)) EXPECT_EQ(std::ranges::count(isas, part), 1);
}

// Linux masks what it does not save, so its list is the same question asked another way.
TEST(Cpu, agrees_with_the_operating_system) {
  std::ifstream in("/proc/cpuinfo");
  std::set<std::string> flags;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("flags")) continue;
    for (std::size_t at = line.find(':') + 1; at < line.size();) {
      const std::size_t end = std::min(line.find(' ', at), line.size());
      flags.insert(line.substr(at, end - at));
      at = end + 1;
    }
    break;
  }
  if (flags.empty()) GTEST_SKIP() << "no /proc/cpuinfo with flags here";
  const auto all = [&](std::initializer_list<const char*> names) {
    return std::ranges::all_of(names, [&](const char* name) { return flags.contains(name); });
  };
  const CpuFeatures& features = cpu_features();
  EXPECT_EQ(features.avx2, all({"avx2", "fma", "f16c"}));
  EXPECT_EQ(features.avx_vnni, features.avx2 && all({"avx_vnni"}));
  EXPECT_EQ(features.avx512_vnni, all({"avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512dq",
                                       "avx512vl", "avx512_vnni"}));
  EXPECT_EQ(features.avx512_bf16, features.avx512_vnni && all({"avx512_bf16"}));
}

}  // namespace
}  // namespace parfait
