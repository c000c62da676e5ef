// What plan_quantize() settles and quantize() carries out, and the steps between the two.
#ifndef PARFAIT_CONVERT_QUANTIZE_STATE_H_
#define PARFAIT_CONVERT_QUANTIZE_STATE_H_

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "container/writer.h"
#include "convert/best/inputs.h"
#include "convert/recipe.h"
#include "convert/target.h"
#include "parfait/quantize.h"

namespace parfait::convert {

// A layer that is encoded.
struct EncodedLayer {
  const formats::Layer* layer = nullptr;
  FormatChoice choice;
  LayerTarget target;
  std::size_t entry = 0;             // in QuantizeState::layers
  std::vector<std::size_t> outputs;  // of target.tensors()
};

struct QuantizeState {
  explicit QuantizeState(Checkpoint source) : checkpoint(std::move(source)) {}

  Checkpoint checkpoint;
  std::string recipe;
  std::vector<QuantizeLayer> layers;
  std::vector<QuantizeRule> rules;
  std::vector<std::string> warnings;
  std::vector<EncodedLayer> encoded;

  Quality quality = Quality::kitchen;
  std::shared_ptr<const Calibration> calibration;  // null: none
  std::filesystem::path calibration_path;          // empty: none
  std::string calibration_name;                    // its path, size and time

  // The file.
  std::vector<container::TensorDeclaration> tensors;
  std::vector<std::pair<std::string, std::string>> metadata;
  struct Copy {
    const TensorInfo* tensor;
    std::size_t output;
  };
  std::vector<Copy> copies;
  std::vector<std::pair<std::size_t, std::string>> markers;  // output and text
  std::uint64_t bytes = 0;
  std::string fingerprint;
};

// Declares the file's tensors, in the order of the source, and its metadata. May be called anew
// once targets have changed.
Result<Done> lay_out(QuantizeState& state);
// Chooses formats by measured error so that a target of the options is met from below.
Result<Done> choose_formats(QuantizeState& state, const QuantizeOptions& options);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_QUANTIZE_STATE_H_
