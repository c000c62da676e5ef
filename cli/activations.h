// The inputs that `run` gives to layers: tensors of a file, or pseudo-random normal values that
// depend on the seed and the layer's name only.
#ifndef PARFAIT_CLI_ACTIVATIONS_H_
#define PARFAIT_CLI_ACTIVATIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common.h"

namespace parfait::cli {

class Activations {
 public:
  static Activations random(std::uint64_t rows, DType dtype, std::uint64_t seed);
  // Tensors that are named like layers; a tensor `x` is for all other layers that it fits.
  static Activations from_file(const std::string& path);

  struct Input {
    DType dtype = DType::f32;
    std::uint64_t rows = 0;
    std::vector<std::uint64_t> shape;  // the last dimension is the layer's input width
    std::optional<TensorInfo> tensor;  // where it comes from a file
    std::string why_not;               // no input for this layer, because
  };
  Input find(const LayerPlan& layer) const;
  std::vector<std::byte> read(const LayerPlan& layer, const Input& input) const;
  // The file that they come from, if they do.
  const std::optional<Checkpoint>& file() const { return file_; }

 private:
  std::uint64_t rows_ = 0, seed_ = 0;
  DType dtype_ = DType::bf16;
  std::optional<Checkpoint> file_;
  std::vector<TensorInfo> tensors_;  // of the file, by name
};

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_ACTIVATIONS_H_
