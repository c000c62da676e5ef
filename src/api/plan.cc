// The public view of plans.

#include "parfait/plan.h"

#include <algorithm>
#include <cmath>

#include "base/result.h"
#include "formats/format.h"
#include "plan/byte_ranges.h"
#include "plan/make_plan.h"

namespace parfait {

std::span<const LayerPlan> Plan::layers() const { return state_->layers; }
std::uint64_t Plan::plain_bytes() const { return state_->plain_bytes; }
const PlanOptions& Plan::options() const { return state_->options; }
const CheckedCheckpoint& Plan::checked() const { return state_->checked; }
std::span<const Finding> Plan::notes() const { return state_->notes; }

const LayerPlan* Plan::find(std::string_view layer) const {
  const auto it = state_->by_name.find(layer);
  return it == state_->by_name.end() ? nullptr : &state_->layers[it->second];
}

std::vector<FormatTotal> Plan::totals() const {
  std::vector<FormatTotal> totals;
  for (const formats::Format* format : formats::all_formats()) {
    FormatTotal total{format->name};
    for (const LayerPlan& layer : state_->layers) {
      if (layer.format != format->name) continue;
      ++total.layers;
      total.weights += layer.rows * layer.columns;
      total.stored_bytes += layer.stored_bytes;
      total.resident_bytes += layer.resident_bytes;
    }
    if (total.layers) totals.push_back(total);
  }
  return totals;
}

std::vector<std::uint64_t> Plan::rank_bytes() const {
  std::vector<std::uint64_t> bytes(state_->options.ranks, state_->plain_bytes);
  for (const LayerPlan& layer : state_->layers)
    for (std::size_t rank = 0; rank < bytes.size(); ++rank) bytes[rank] += layer.rank_bytes[rank];
  return bytes;
}

bool Plan::operator==(const Plan& other) const {
  return state_->plain_bytes == other.state_->plain_bytes && state_->layers == other.state_->layers;
}

Result<Plan> make_plan(const CheckedCheckpoint& checkpoint, const PlanOptions& options) {
  PARFAIT_TRY(std::shared_ptr<const plan::State> state, plan::make(checkpoint, options));
  return Plan(std::move(state));
}

Result<std::vector<ByteRange>> rank_byte_ranges(const Plan& plan, std::string_view layer,
                                                std::uint32_t rank) {
  const auto it = plan.state()->by_name.find(layer);
  if (it == plan.state()->by_name.end())
    return make_error(ErrorCode::layer_not_found, "no layer is named {}", printable(layer));
  if (rank >= plan.options().ranks)
    return make_error(ErrorCode::plan_ranks, "rank {} was asked for in a plan for {}", rank,
                      plan.options().ranks);
  return plan::byte_ranges(plan.checked().checkpoint().state()->layers[it->second],
                           plan.state()->layers[it->second], rank);
}

double layer_tolerance(const LayerPlan& layer, DType output, std::uint64_t outputs) {
  const formats::Format* format = formats::find_format(layer.format);
  if (!format) return 0;
  // Half a unit in the last place of the output's type.
  const double rounding = output == DType::bf16 ? 0x1p-8 : output == DType::f16 ? 0x1p-11 : 0x1p-24;
  // A sum that cancels has a small norm and the error of its terms: with one output anything may
  // be.
  const double luck = outputs ? 1 + 8 / std::sqrt(static_cast<double>(outputs)) : 1;
  return (plan::tolerance_of(*format, layer.method) + rounding) * luck;
}

}  // namespace parfait
