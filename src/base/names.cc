// The names of the public enumerations, and shapes as text.

#include <array>
#include <cstddef>

#include "base/cpu.h"
#include "base/result.h"
#include "parfait/checkpoint.h"
#include "parfait/plan.h"

namespace parfait {
namespace {

template <class Enum, std::size_t n>
std::string_view name_of(const std::array<std::string_view, n>& names, Enum value) {
  return names[static_cast<std::size_t>(value)];
}

constexpr std::array<std::string_view, 7> isa_names = {
    "reference", "avx2", "avx_vnni", "avx512_vnni", "avx512_bf16", "neon_dotprod", "neon_i8mm"};

}  // namespace

std::string shape_text(std::span<const std::uint64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string_view layer_kind_name(LayerKind kind) {
  return name_of<LayerKind, 4>({"linear", "embedding", "convolution", "experts"}, kind);
}

std::string_view isa_name(Isa isa) { return name_of(isa_names, isa); }

std::optional<Isa> parse_isa(std::string_view name) {
  for (std::size_t i = 0; i < isa_names.size(); ++i)
    if (isa_names[i] == name) return static_cast<Isa>(i);
  return std::nullopt;
}

std::vector<Isa> machine_isas() {
  std::vector<Isa> isas = {Isa::reference};
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx2) isas.push_back(Isa::avx2);
  if (cpu.avx_vnni) isas.push_back(Isa::avx_vnni);
  if (cpu.avx512_vnni) isas.push_back(Isa::avx512_vnni);
  if (cpu.avx512_bf16) isas.push_back(Isa::avx512_bf16);
  if (cpu.neon_dotprod) isas.push_back(Isa::neon_dotprod);
  if (cpu.neon_i8mm) isas.push_back(Isa::neon_i8mm);
  return isas;
}

std::vector<Isa> isas_within(Isa isa) {
  switch (isa) {
    case Isa::reference:
      return {Isa::reference};
    case Isa::avx2:
    case Isa::neon_dotprod:
      return {Isa::reference, isa};
    case Isa::avx_vnni:
    case Isa::avx512_vnni:
      return {Isa::reference, Isa::avx2, isa};
    case Isa::avx512_bf16:
      return {Isa::reference, Isa::avx2, Isa::avx512_vnni, isa};
    case Isa::neon_i8mm:
      return {Isa::reference, Isa::neon_dotprod, isa};
  }
  return {};
}

std::string_view method_name(Method method) {
  return name_of<Method, 8>(
      {"int8", "w4a4 int4", "w4a4 int8", "w4a8", "w6a8", "decode rows", "lookup", "decode only"},
      method);
}

std::string_view split_axis_name(SplitAxis axis) {
  return name_of<SplitAxis, 4>({"whole", "outputs", "inputs", "replicated"}, axis);
}

}  // namespace parfait
