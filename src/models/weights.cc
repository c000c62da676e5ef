#include "models/weights.h"

#include <algorithm>
#include <new>
#include <optional>

#include "base/result.h"
#include "formats/format.h"
#include "plan/check_access.h"
#include "plan/make_plan.h"

namespace parfait::models {
namespace {

std::uint64_t bytes_of(const plan::State& plan, const Block& block) {
  std::uint64_t bytes = 0;
  for (const std::string& name : block.layers)
    if (const auto it = plan.by_name.find(name); it != plan.by_name.end())
      bytes += plan.layers[it->second].resident_bytes;
  return bytes;
}

DType activation_dtype(const plan::State& plan) {
  const auto is_exact = [](const LayerPlan& layer) {
    return layer.kind != LayerKind::linear || layer.format == "f32" || layer.format == "f16";
  };
  return std::ranges::all_of(plan.layers, is_exact) ? DType::f32 : DType::bf16;
}

}  // namespace

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

void add_layers(Block& block, std::initializer_list<const Linear*> linears) {
  for (const Linear* linear : linears)
    block.layers.insert(block.layers.end(), linear->layers.begin(), linear->layers.end());
}

Result<Residency> decide_residency(const Plan& plan, const std::vector<Block>& blocks,
                                   std::uint64_t max_bytes) {
  std::vector<std::uint64_t> bytes;
  Residency residency;
  for (const Block& block : blocks) {
    bytes.push_back(bytes_of(*plan.state(), block));
    residency.total_bytes += bytes.back();
  }
  residency.pinned.assign(blocks.size(), true);
  residency.pinned_bytes = residency.total_bytes;
  if (residency.total_bytes <= max_bytes) return residency;

  // Two streamed blocks are held at once: the one in use, and the next.
  const std::uint64_t largest =
      blocks.size() < 2 ? 0 : *std::max_element(bytes.begin() + 1, bytes.end());
  const std::uint64_t least = bytes[0] + 2 * largest;
  if (blocks.size() < 4 || least > max_bytes)
    return make_error(
        ErrorCode::model_memory,
        "{} of weights do not fit into the {} that remain for them: {} is the least that works "
        "(what every step uses, and two blocks at a time), {} more",
        bytes_text(residency.total_bytes), bytes_text(max_bytes),
        bytes_text(std::min(least, residency.total_bytes)),
        bytes_text(std::min(least, residency.total_bytes) - max_bytes));
  residency.window_bytes = 2 * largest;
  residency.pinned_bytes = bytes[0];
  // Those that stay are spread evenly, so that each read has about as much arithmetic beside it.
  const std::size_t streamable = blocks.size() - 1;
  const std::uint64_t room = max_bytes - least;
  const std::size_t keep = std::min<std::size_t>(
      static_cast<std::size_t>(room / std::max<std::uint64_t>(largest, 1)), streamable);
  for (std::size_t i = 0; i < streamable; ++i) {
    const bool stays = (i + 1) * keep / streamable != i * keep / streamable;
    residency.pinned[i + 1] = stays;
    if (stays) residency.pinned_bytes += bytes[i + 1];
  }
  return residency;
}

Weights::Weights(const Plan& plan, std::vector<Block> blocks, Residency residency,
                 const WeightsOptions& options)
    : plan_(plan),
      blocks_(std::move(blocks)),
      residency_(std::move(residency)),
      activation_(models::activation_dtype(*plan.state())),
      session_(nullptr, options.threads) {}

Weights::~Weights() {
  if (next_.valid()) next_.wait();
}

Result<std::unique_ptr<Weights>> Weights::load(const Plan& plan, std::vector<Block> blocks,
                                               const WeightsOptions& options) {
  PARFAIT_TRY(Residency residency, decide_residency(plan, blocks, options.max_bytes));
  LoadOptions load;
  load.threads = options.threads;
  load.progress = options.progress;
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (residency.pinned[i])
      load.layers.insert(load.layers.end(), blocks[i].layers.begin(), blocks[i].layers.end());
  std::unique_ptr<Weights> weights(
      new Weights(plan, std::move(blocks), std::move(residency), options));
  PARFAIT_TRY(weights->pinned_, runtime::load(plan, load));
  weights->session_.use(weights->pinned_);
  weights->start_reading(0);
  return weights;
}

Result<Weights::ModelPtr> Weights::read_block(std::size_t block) const {
  LoadOptions load;
  load.threads = 1;  // the other threads compute
  load.layers = blocks_[block].layers;
  try {
    return runtime::load(plan_, load);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::out_of_memory, "there is not enough memory to read {}",
                      printable(blocks_[block].name));
  }
}

// The next block after this one, around the end, that does not stay.
void Weights::start_reading(std::size_t after) {
  if (residency_.all()) return;
  next_block_ = after;
  do next_block_ = (next_block_ + 1) % blocks_.size();
  while (residency_.pinned[next_block_]);
  next_ = std::async(std::launch::async, [this, block = next_block_] { return read_block(block); });
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
    // What was read ahead is of no use where blocks are entered out of order, after an error.
    std::optional<Result<ModelPtr>> read;
    if (next_.valid()) read = next_.get();
    if (!read || next_block_ != block) read = read_block(block);
    PARFAIT_TRY(streamed_, *std::move(read));
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
  return session_.lookup(table.layers.front(), ids, y);
}

}  // namespace parfait::models
