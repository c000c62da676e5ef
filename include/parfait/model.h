// Loading a plan and running its layers.
//
// load() is the only slow call: it reads and packs the layers that it is asked for, reports
// progress and can be cancelled. A Model is immutable and may be used by any number of Sessions at
// once; a Session holds threads and scratch and belongs to one caller at a time.
#ifndef PARFAIT_MODEL_H_
#define PARFAIT_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/dtype.h"
#include "parfait/error.h"
#include "parfait/plan.h"

namespace parfait {

namespace runtime {
struct Model;
struct Session;
}  // namespace runtime

struct LoadOptions {
  std::vector<std::string> layers;  // names; empty: every layer of the plan
  unsigned threads = 0;             // 0: as many as the machine has
  ProgressCallback progress;
};

class Model {
 public:
  std::size_t size() const;  // loaded layers
  std::uint64_t resident_bytes() const;
  const Plan& plan() const;

  explicit Model(std::shared_ptr<const runtime::Model> state) : state_(std::move(state)) {}
  const std::shared_ptr<const runtime::Model>& state() const { return state_; }

 private:
  std::shared_ptr<const runtime::Model> state_;
};

Result<Model> load(const Plan& plan, const LoadOptions& options = {});

// A row-major matrix that somebody else owns: rows × columns elements of F32, F16 or BF16; rows
// start stride elements apart. Data need not be aligned beyond its element.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::uint64_t rows = 0, columns = 0, stride = 0;
};
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::uint64_t rows = 0, columns = 0, stride = 0;

  operator ConstMatrix() const { return {data, dtype, rows, columns, stride}; }
};

// A layer, and where its output goes.
struct LinearTarget {
  std::string_view layer;
  Matrix y;
};

class Session {
 public:
  // threads = 0: as many as the machine has. Results never depend on the number.
  explicit Session(Model model, unsigned threads = 0);
  ~Session();
  Session(Session&&) noexcept;
  Session& operator=(Session&&) noexcept;

  // y = x · Wᵀ + bias for one linear layer. x is [M, K], y is [M, N]; the dtypes may differ. A row
  // of x with a NaN or an infinity gives a row of NaN in the integer methods.
  Result<Done> linear(std::string_view layer, ConstMatrix x, Matrix y);
  // Several layers that read the same x (q, k and v stored apart; gate and up), in one pass: x is
  // rotated and quantised once for all layers that want the same rotation and width. The same bits
  // as one by one. Nothing runs if one of them is refused.
  Result<Done> linear(std::span<const LinearTarget> targets, ConstMatrix x);
  // Rows of an embedding: y is [ids.size(), K].
  Result<Done> lookup(std::string_view layer, std::span<const std::int64_t> ids, Matrix y);

 private:
  std::unique_ptr<runtime::Session> state_;
};

// What linear() is measured against: y = x · Wᵀ + bias with the layer's decoded rows, summed in
// double and rounded to float. y holds M × N values, row-major. Never holds more than some rows of
// W. Plain and slow; progress counts rows of W and may cancel. threads = 0: as many as the machine
// has.
Result<Done> reference_linear(const Checkpoint& checkpoint, const Layer& layer, ConstMatrix x,
                              std::span<float> y, unsigned threads = 0,
                              const ProgressCallback& progress = {});

}  // namespace parfait

#endif  // PARFAIT_MODEL_H_
