// Rows of real inputs of layers, and what is made of them for error feedback.
//
// A calibration file is a safetensors file with a tensor [rows, K] of F32, F16 or BF16 for each
// layer, named as the layer or <layer>.input; `parfait generate --capture` writes such files.
// Layers that it does not name are encoded without inputs.
//
// With X the rows, rotated as the layer's weight is: H = XᵀX, plus a little on its diagonal, and
// the factor U of its inverse, upper triangular: H⁻¹ = UᵀU. U is all that is kept: one K×K matrix
// of floats, in which H itself was built. Nothing of that size is allocated before max_memory was
// asked.
#ifndef PARFAIT_CONVERT_BEST_INPUTS_H_
#define PARFAIT_CONVERT_BEST_INPUTS_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "container/tensor_index.h"
#include "formats/encode.h"
#include "parfait/error.h"
#include "runtime/threads.h"

namespace parfait::convert {

struct InputOptions {
  std::uint64_t max_memory = ~0ull;  // bytes that inputs() may hold, its result included
  std::uint64_t max_rows = 8192;     // more rows than that: evenly strided ones
  float damping = 0.01f;             // of the mean of H's diagonal
};

// Of one layer. Immutable; any thread may use it.
struct Inputs {
  std::uint64_t columns = 0;
  std::vector<std::uint32_t> order;  // the columns in the order of rounding, largest energy first
  std::vector<float> energy;         // the diagonal of H, by column
  std::vector<float> factor;         // U, row-major, rows and columns in the order of `order`
};

// Bytes that a layer of that many columns, and rows of inputs, needs while these are made.
std::uint64_t inputs_bytes(std::uint64_t columns, std::uint64_t rows);
inline constexpr std::uint64_t max_columns = 1 << 16;  // 16 GiB: no layer is near

class Calibration {
 public:
  // An error where a tensor is no matrix of floats.
  static Result<Calibration> open(const std::filesystem::path& path);

  const TensorInfo* find(std::string_view layer) const;  // null: no rows of this layer
  std::vector<std::string_view> tensors() const;         // all names, to warn of unused ones

  // Errors: no such layer; rows of another width than the layer's; values that are not finite; more
  // memory needed than allowed. All name the layer.
  Result<Inputs> inputs(std::string_view layer, const formats::WeightShape& weight,
                        const formats::EncodeSettings& settings, const InputOptions& options,
                        runtime::Threads& threads) const;

 private:
  explicit Calibration(container::TensorIndexPtr index) : index_(std::move(index)) {}
  container::TensorIndexPtr index_;
};

// The same from rows × columns floats at hand, in the original basis; they are overwritten.
Result<Inputs> make_inputs(std::vector<float> rows, std::uint64_t columns, std::uint32_t rotate,
                           float damping, runtime::Threads& threads);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_INPUTS_H_
