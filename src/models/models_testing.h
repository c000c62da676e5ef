// What the tests of models share: checkpoints with weights loaded, golden tensors, comparison.
#ifndef PARFAIT_MODELS_MODELS_TESTING_H_
#define PARFAIT_MODELS_MODELS_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "base/floats.h"
#include "container/tensor_index.h"
#include "models/run.h"
#include "models/transformer.h"
#include "plan/make_plan.h"

namespace parfait::models {

// A file of golden tensors.
class Golden {
 public:
  explicit Golden(const std::string& path) {
    auto opened = container::open_index(path, {});
    if (!opened.ok()) throw std::runtime_error(opened.error().message);
    index_ = *std::move(opened);
  }
  const TensorInfo& info(const std::string& name) const {
    const TensorInfo* found = index_->find(name);
    if (!found) throw std::runtime_error("no golden tensor " + name);
    return *found;
  }
  bool has(const std::string& name) const { return index_->find(name) != nullptr; }
  std::uint64_t side(const std::string& name, std::size_t axis) const {
    return info(name).shape[axis];
  }
  std::vector<double> values(const std::string& name) const {
    const TensorInfo& tensor = info(name);
    std::vector<std::byte> scratch;
    const ByteSpan bytes = *index_->read(tensor, scratch);
    std::vector<double> out(bytes.size() / (dtype_bits(tensor.dtype) / 8));
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (tensor.dtype == DType::f64)
        out[i] = load_at<double>(bytes.data(), i);
      else if (tensor.dtype == DType::i64)
        out[i] = static_cast<double>(load_at<std::int64_t>(bytes.data(), i));
      else
        out[i] = static_cast<double>(load_float(tensor.dtype, bytes.data(), i));
    }
    return out;
  }
  std::vector<float> floats(const std::string& name) const {
    const std::vector<double> all = values(name);
    return {all.begin(), all.end()};
  }
  std::vector<std::int64_t> integers(const std::string& name) const {
    std::vector<std::int64_t> out;
    for (double v : values(name)) out.push_back(static_cast<std::int64_t>(v));
    return out;
  }
  // Two dimensions, as floats.
  Buffer matrix(const std::string& name) const {
    Buffer out(side(name, 0), side(name, 1), DType::f32);
    std::ranges::copy(floats(name), out.floats());
    return out;
  }
  const container::TensorIndex& index() const { return *index_; }

 private:
  container::TensorIndexPtr index_;
};

// The largest difference, as a share of the largest value expected.
inline double worst_difference(std::span<const float> got, std::span<const double> expected) {
  if (got.size() != expected.size()) return std::nan("");
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - expected[i]);
    if (!(d <= worst)) worst = d;  // NaN is kept
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

// A file planned for an instruction set, and what runs it.
struct Loaded {
  explicit Loaded(const std::string& path, std::optional<Isa> isa = {}, unsigned threads = 2,
                  OpenOptions open = {})
      : plan(plan_or_throw(path, isa, open)),
        ops(threads, isa ? isas_within(*isa) : machine_isas()),
        threads_(threads) {}

  const formats::Checkpoint& checkpoint() const {
    return *plan.state()->checked.checkpoint().state();
  }
  void load(std::vector<Block> blocks, std::uint64_t max_bytes = all_memory) {
    auto loaded =
        Weights::load(plan, std::move(blocks), {.max_bytes = max_bytes, .threads = threads_});
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message);
    weights = *std::move(loaded);
    run = std::make_unique<Run>(ops, weights.get(), nullptr);
  }

  Plan plan;
  runtime::Ops ops;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Run> run;

 private:
  static Plan plan_or_throw(const std::string& path, std::optional<Isa> isa, OpenOptions open) {
    PlanOptions options;
    options.isa = isa;
    auto plan = plan_file(path, open, options);
    if (!plan.ok()) throw std::runtime_error(plan.error().message);
    return *std::move(plan);
  }
  unsigned threads_;
};

inline std::string golden_path(const std::string& name) {
  return std::string(PARFAIT_SOURCE_DIR) + "/tests/golden/" + name;
}

#define PARFAIT_ASSERT_OK(expression)                                   \
  do {                                                                  \
    const auto parfait_result = (expression);                           \
    ASSERT_TRUE(parfait_result.ok()) << parfait_result.error().message; \
  } while (false)

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_MODELS_TESTING_H_
