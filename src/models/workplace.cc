#include "models/workplace.h"

#include <algorithm>

#include "plan/state.h"
#include "runtime/layer_rows.h"

namespace parfait::models {

DType activation_dtype(const Plan& plan) {
  const auto is_exact = [](const LayerPlan& layer) {
    return layer.kind != LayerKind::linear || layer.format == "f32" || layer.format == "f16";
  };
  return std::ranges::all_of(plan.state()->layers, is_exact) ? DType::f32 : DType::bf16;
}

runtime::ScratchBytes Workplace::scratch() const {
  return runtime::ScratchBytes(*plan.state(), threads);
}

std::uint64_t Workplace::count(runtime::ScratchBytes& scratch,
                               std::initializer_list<const Linear*> linears, std::uint64_t rows,
                               DType dtype) const {
  for (const Linear* linear : linears)
    for (const std::string& layer : linear->layers) scratch.count({layer, rows, dtype});
  return scratch.bytes();
}

std::uint64_t Workplace::lookup(const Linear& table, std::uint64_t ids) const {
  const plan::State& state = *plan.state();
  const formats::Checkpoint& source = *state.checked.checkpoint().state();
  return runtime::lookup_bytes(source.layers[state.by_name.at(table.layers.front())], ids);
}

std::uint64_t Workplace::attention(const runtime::AttentionShape& shape) const {
  return runtime::attention_scratch(isas, threads, shape);
}

}  // namespace parfait::models
