// A loaded model and the session that runs its layers: what parfait/model.h stands on.
#ifndef PARFAIT_RUNTIME_MODEL_H_
#define PARFAIT_RUNTIME_MODEL_H_

#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/format.h"
#include "kernels/linear/linear.h"
#include "parfait/model.h"
#include "plan/state.h"
#include "runtime/threads.h"

namespace parfait::runtime {

// One layer, ready to run. packed is used by the integer methods; data by those that decode rows.
struct LoadedLayer {
  const formats::Layer* layer = nullptr;
  const LayerPlan* plan = nullptr;
  plan::Chosen kernels;
  kernels::PackedWeight packed;
  formats::LayerData data;
  std::vector<float> bias;             // N or none (the packed weight has its own)
  std::vector<float> pre_quant_scale;  // K or none: multiplies the activation first

  std::uint64_t resident_bytes() const;
};

struct Model {
  explicit Model(Plan p) : plan(std::move(p)) {}
  Plan plan;
  std::vector<LoadedLayer> layers;
  std::unordered_map<std::string_view, std::uint32_t> by_name;

  const LoadedLayer* find(std::string_view name) const;
};

// Reads and packs layers in the order in which they lie in the files; beside the model itself it
// holds one layer at most.
Result<std::shared_ptr<const Model>> load(const Plan& plan, const LoadOptions& options);

// What reading a layer holds beside its resident bytes: the bytes of the file, where they are
// packed, with rows that are widened on the way.
std::uint64_t reading_bytes(const plan::State& plan, std::uint32_t layer, unsigned threads);

struct Session {
  Session(std::shared_ptr<const Model> m, unsigned threads) : model(std::move(m)), pool(threads) {}

  // What the next calls look their layers up in; scratch is kept.
  void use(std::shared_ptr<const Model> m) { model = std::move(m); }
  void drop_scratch();

  Result<Done> linear(std::span<const LinearTarget> targets, const ConstMatrix& x);
  Result<Done> linear(std::string_view name, const ConstMatrix& x, const Matrix& y) {
    const LinearTarget one{name, y};
    return linear({&one, 1}, x);
  }
  Result<Done> lookup(std::string_view name, std::span<const std::int64_t> ids, const Matrix& y);

  // The two halves of an integer layer, for the benchmark: codes of x, and y from them.
  struct Call {
    const LoadedLayer* layer;
    Matrix y;
  };
  void quantize(const LoadedLayer& layer, const ConstMatrix& x);
  void multiply(std::span<const Call> calls);

 private:
  void run_decoded(const LoadedLayer& layer, const ConstMatrix& x, const Matrix& y);
  Result<Done> run_bf16(const LoadedLayer& layer, const ConstMatrix& x, const Matrix& y);
  void reserve_input(std::uint64_t values);
  void reserve_tiles(std::uint64_t values);
  void reserve_bytes(std::uint64_t bytes);

  std::shared_ptr<const Model> model;
  Threads pool;
  kernels::QuantizedRows quantized;
  std::vector<float> input;                    // the activation as floats
  std::vector<std::vector<float>> row_tiles;   // decoded rows, by thread
  std::vector<std::vector<float>> rooms;       // of the bf16 kernels, by thread
  std::vector<kernels::AlignedBytes> scratch;  // of the integer kernels, by thread
};

// Whether y has the shape for rows `ids` of a table, and the table has these rows.
Result<Done> check_lookup(std::string_view layer, std::uint64_t rows, std::uint64_t columns,
                          std::span<const std::int64_t> ids, const Matrix& y);

// What a session's scratch will have grown to once it has run the layers that are counted.
class ScratchBytes {
 public:
  // The plan's state must outlive this.
  ScratchBytes(const plan::State& plan, unsigned threads) : plan_(plan), threads_(threads) {}

  struct LinearInput {
    std::string_view layer;
    std::uint64_t rows;
    DType dtype;  // of x
  };
  std::uint64_t count(const LinearInput& input);  // returns bytes()
  std::uint64_t bytes() const { return codes_ + input_ + threads_ * (thread_ + room_ + tile_); }

 private:
  const plan::State& plan_;
  unsigned threads_;
  std::uint64_t codes_ = 0, input_ = 0, thread_ = 0, room_ = 0, tile_ = 0;
};

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_MODEL_H_
