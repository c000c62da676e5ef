// What a Plan holds. Public code sees it through parfait/plan.h only.
#ifndef PARFAIT_PLAN_STATE_H_
#define PARFAIT_PLAN_STATE_H_

#include <string_view>
#include <unordered_map>
#include <vector>

#include "kernels/dense/dense.h"
#include "kernels/linear/linear.h"
#include "parfait/plan.h"

namespace parfait::plan {

// The kernels of a layer: linear and quantize where an integer method was chosen, decode for
// decode_rows, and bf16 beside it for what it takes faster.
struct Chosen {
  kernels::WeightCode stored = {};  // of the weight in the file; where linear has another, codes
                                    // are widened to it at load
  const kernels::LinearKernel* linear = nullptr;
  const kernels::QuantizeKernel* quantize = nullptr;
  const kernels::FloatKernel* decode = nullptr;
  const kernels::Bf16Kernel* bf16 = nullptr;
};

// Rows of a BF16 input from which bf16 is faster than decode.
inline constexpr std::uint64_t least_bf16_rows = 8;

struct State {
  explicit State(CheckedCheckpoint c) : checked(std::move(c)) {}
  CheckedCheckpoint checked;
  PlanOptions options;
  std::vector<LayerPlan> layers;  // as the checkpoint's layers, one each, in its order
  std::vector<Chosen> chosen;     // by layer
  std::vector<Finding> notes;
  std::uint64_t plain_bytes = 0;
  std::unordered_map<std::string_view, std::uint32_t> by_name;
};

}  // namespace parfait::plan

#endif  // PARFAIT_PLAN_STATE_H_
