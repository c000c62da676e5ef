#include "models/weights.h"

#include <new>

#include "base/result.h"
#include "formats/format.h"
#include "models/workplace.h"
#include "plan/check_access.h"
#include "plan/make_plan.h"
#include "plan/state.h"
#include "runtime/layer_rows.h"

namespace parfait::models {

Result<Plan> plan_file(const std::filesystem::path& path, const OpenOptions& open,
                       const PlanOptions& options) {
  PARFAIT_TRY(container::TensorIndexPtr index, container::open_index(path, open));
  PARFAIT_TRY(std::shared_ptr<const formats::Checkpoint> state,
              formats::detect(std::move(index), {.compat = open.compat}));
  PARFAIT_TRY(const std::vector<Finding> findings, formats::check_layers(*state, {}));
  for (const Finding& finding : findings)
    if (finding.severity == Severity::error)
      return make_error(ErrorCode::not_sound, "{}: {} (`parfait check` lists all findings)",
                        printable(path.string(), 1000), finding.line());
  PARFAIT_TRY(std::shared_ptr<const plan::State> plan,
              plan::make(CheckAccess::make(Checkpoint(std::move(state))), options));
  return Plan(std::move(plan));
}

Weights::Weights(const Plan& plan, std::vector<Block> blocks, Residency residency,
                 const WeightsOptions& options)
    : plan_(plan),
      blocks_(std::move(blocks)),
      residency_(std::move(residency)),
      threads_(options.threads),
      activation_(models::activation_dtype(plan)),
      session_(nullptr, options.threads) {}

Weights::~Weights() {
  if (next_.valid()) next_.wait();
}

Result<std::unique_ptr<Weights>> Weights::load(const Plan& plan, std::vector<Block> blocks,
                                               const WeightsOptions& options) {
  PARFAIT_TRY(Residency residency, decide_residency(plan, blocks, options));
  LoadOptions load;
  load.threads = options.threads;
  load.progress = options.progress;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (residency.pinned[i])
      load.layers.insert(load.layers.end(), blocks[i].layers.begin(), blocks[i].layers.end());
  std::unique_ptr<Weights> weights(
      new Weights(plan, std::move(blocks), std::move(residency), options));
  if (load.layers.empty()) {  // which would be all of them
    weights->pinned_ = std::make_shared<runtime::Model>(plan);
  } else {
    PARFAIT_TRY(weights->pinned_, runtime::load(plan, load));
  }
  weights->session_.use(weights->pinned_);
  weights->start_reading(0);
  return weights;
}

Result<Weights::ModelPtr> Weights::read_block(std::size_t block, unsigned threads) const {
  LoadOptions load;
  load.threads = threads;
  load.layers = blocks_[block].layers;
  try {
    return runtime::load(plan_, load);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::out_of_memory, "there is not enough memory to read {}",
                      printable(blocks_[block].name));
  }
}

void Weights::start_reading(std::size_t after) {
  next_block_ = 0;
  if (!residency_.ahead[after]) return;
  next_block_ = next_streamed(blocks_, residency_, after);
  // On one thread: the others compute.
  next_ =
      std::async(std::launch::async, [this, block = next_block_] { return read_block(block, 1); });
}

Result<Done> Weights::enter(std::size_t block) {
  if (residency_.pinned[block]) {
    session_.use(pinned_);
    return Done{};
  }
  if (block != streamed_block_) {
    session_.use(nullptr);
    streamed_.reset();
    streamed_block_ = 0;
    // What was read ahead is of no use where blocks are entered out of order, as on preparation for
    // a second prompt or after an error. It is let go before more is read.
    if (next_.valid() && next_block_ != block) static_cast<void>(next_.get());
    Result<ModelPtr> read = next_.valid() ? next_.get() : read_block(block, threads_);
    PARFAIT_TRY(streamed_, std::move(read));
    streamed_block_ = block;
    start_reading(block);
  }
  session_.use(streamed_);
  return Done{};
}

Result<Done> Weights::linear(std::initializer_list<Call> calls, const ConstMatrix& x) {
  std::vector<LinearTarget> targets;
  for (const Call& call : calls) {
    if (call.y.columns != call.linear->rows)
      return make_error(ErrorCode::run_shape, "layer {}: y has {} columns, expected {}",
                        printable(call.linear->layers.front()), call.y.columns, call.linear->rows);
    std::uint64_t column = 0;
    for (std::size_t i = 0; i < call.linear->layers.size(); ++i) {
      Matrix y = call.y;
      y.data = static_cast<std::byte*>(y.data) + column * (dtype_bits(y.dtype) / 8);
      y.columns = call.linear->layer_rows[i];
      column += y.columns;
      targets.push_back({call.linear->layers[i], y});
    }
  }
  if (observer_)
    for (const LinearTarget& target : targets) observer_(target.layer, x);
  return session_.linear(targets, x);
}

Result<Done> Weights::lookup(const Linear& table, std::span<const std::int64_t> ids,
                             const Matrix& y) {
  const plan::State& plan = *plan_.state();
  const auto it = plan.by_name.find(table.layers.front());
  if (it == plan.by_name.end())
    return make_error(ErrorCode::run_kind, "there is no layer {}", printable(table.layers.front()));
  const formats::Checkpoint& source = *plan.checked.checkpoint().state();
  return runtime::lookup(source, source.layers[it->second], ids, y);
}

}  // namespace parfait::models
