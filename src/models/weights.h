// The weights of one model, resident or streamed.
//
// A graph enters each block of its layers before it runs it. Where the allowed memory holds all
// blocks, they are loaded once; where it does not, residency.h decides which stay, and the others
// are read again on each pass, ahead of the arithmetic on a thread of their own. The same layers
// are packed in the same way in both cases, so results are the same bits.
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
#include "models/residency.h"
#include "parfait/plan.h"
#include "runtime/model.h"

namespace parfait::models {

// A file opened, found sound, and planned.
Result<Plan> plan_file(const std::filesystem::path& path, const OpenOptions& open,
                       const PlanOptions& options);

class Weights {
 public:
  static Result<std::unique_ptr<Weights>> load(const Plan& plan, std::vector<Block> blocks,
                                               const WeightsOptions& options);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Makes the layers of a block ready. Blocks are entered in ascending order; block 0, which always
  // stays, at any time.
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
  // Rows of an embedding, from the file: a prompt needs a few of the many, and none twice.
  Result<Done> lookup(const Linear& table, std::span<const std::int64_t> ids, const Matrix& y);

  // Scratch that calls have grown is given back.
  void drop_scratch() { session_.drop_scratch(); }

  DType activation_dtype() const { return activation_; }
  const Residency& residency() const { return residency_; }

 private:
  using ModelPtr = std::shared_ptr<const runtime::Model>;
  Weights(const Plan& plan, std::vector<Block> blocks, Residency residency,
          const WeightsOptions& options);
  Result<ModelPtr> read_block(std::size_t block, unsigned threads) const;
  void start_reading(std::size_t after);

  Plan plan_;
  std::vector<Block> blocks_;
  Residency residency_;
  unsigned threads_;
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
