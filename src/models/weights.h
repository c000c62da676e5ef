// The weights of one model, resident or streamed.
//
// A graph names its layers in blocks, in the order in which a pass uses them, and enters each block
// before it runs it. Where the allowed memory holds all of them, they are loaded once. Where it
// does not, a fixed part of the blocks stays and the others are read again on each pass, one block
// ahead of the arithmetic, on a thread of their own: every pass walks all blocks, so that which was
// used longest ago is the one needed next, and keeping the most recent would keep nothing. The same
// layers are packed in the same way in both cases, so results are the same bits.
//
// One caller at a time.
#ifndef PARFAIT_MODELS_WEIGHTS_H_
#define PARFAIT_MODELS_WEIGHTS_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "models/finder.h"
#include "parfait/plan.h"
#include "runtime/model.h"

namespace parfait::models {

inline constexpr std::uint64_t all_memory = UINT64_MAX;

// A file opened, found sound, and planned.
Result<Plan> plan_file(const std::filesystem::path& path, const OpenOptions& open,
                       const PlanOptions& options);

struct Block {
  std::string name;                 // for messages
  std::vector<std::string> layers;  // full names
};
void add_layers(Block& block, std::initializer_list<const Linear*> linears);

struct WeightsOptions {
  std::uint64_t max_bytes = all_memory;  // of packed weights, with what is read ahead
  unsigned threads = 0;
  ProgressCallback progress;
};

// What of the blocks stays, decided from a plan alone.
struct Residency {
  std::vector<bool> pinned;        // by block
  std::uint64_t pinned_bytes = 0;  // of those that stay
  std::uint64_t total_bytes = 0;   // of all blocks
  std::uint64_t window_bytes = 0;  // of the streamed block in use and the one being read
  bool all() const { return window_bytes == 0; }
  std::uint64_t bytes() const { return pinned_bytes + window_bytes; }
};
// Block 0 always stays. An error says how much is missing.
Result<Residency> decide_residency(const Plan& plan, const std::vector<Block>& blocks,
                                   std::uint64_t max_bytes);

class Weights {
 public:
  static Result<std::unique_ptr<Weights>> load(const Plan& plan, std::vector<Block> blocks,
                                               const WeightsOptions& options);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Makes the layers of a block ready. A pass enters blocks in ascending order; block 0, which
  // always stays, at any time.
  Result<Done> enter(std::size_t block);
  // y = x · Wᵀ + bias, for a layer of the entered block. Where W stands in several
  // layers, each fills its columns of y.
  struct Call {
    const Linear* linear;
    Matrix y;
  };
  Result<Done> linear(std::initializer_list<Call> calls, const ConstMatrix& x);
  // Told of each layer and its input before it runs.
  using Observer = std::function<void(std::string_view layer, const ConstMatrix& x)>;
  void observe(Observer observer) { observer_ = std::move(observer); }
  // Rows of an embedding.
  Result<Done> lookup(const Linear& table, std::span<const std::int64_t> ids, const Matrix& y);

  // The type in which a graph hands activations from op to op: F32 where every linear layer is F32
  // or F16, else BF16.
  DType activation_dtype() const { return activation_; }
  const Residency& residency() const { return residency_; }

 private:
  using ModelPtr = std::shared_ptr<const runtime::Model>;
  Weights(const Plan& plan, std::vector<Block> blocks, Residency residency,
          const WeightsOptions& options);
  Result<ModelPtr> read_block(std::size_t block) const;
  void start_reading(std::size_t after);

  Plan plan_;
  std::vector<Block> blocks_;
  Residency residency_;
  DType activation_ = DType::bf16;
  Observer observer_;
  runtime::Session session_;
  ModelPtr pinned_, streamed_;
  std::size_t streamed_block_ = 0;  // 0: none
  std::size_t next_block_ = 0;      // what next_ reads; 0: nothing
  std::future<Result<ModelPtr>> next_;
};

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_WEIGHTS_H_
