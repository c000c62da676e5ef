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

constexpr std::array<std::string_view, 2> isa_names = {"reference", "avx512_vnni"};

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
  if (cpu_features().avx512_vnni) isas.push_back(Isa::avx512_vnni);
  return isas;
}

std::string_view method_name(Method method) {
  return name_of<Method, 6>(
      {"int8", "w4a4 int4", "w4a4 int8", "decode rows", "lookup", "decode only"}, method);
}

std::string_view split_axis_name(SplitAxis axis) {
  return name_of<SplitAxis, 4>({"whole", "outputs", "inputs", "replicated"}, axis);
}

}  // namespace parfait
