#include "cli/activations.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace parfait::cli {
namespace {

// Sebastiano Vigna's splitmix64: small, and the same everywhere.
struct Random {
  std::uint64_t state;

  std::uint64_t next() {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1p-53; }
};

std::uint64_t hash(std::string_view text) {  // FNV-1a
  std::uint64_t h = 0xcbf29ce484222325u;
  for (char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return h;
}

}  // namespace

Activations Activations::random(std::uint64_t rows, DType dtype, std::uint64_t seed) {
  Activations activations;
  activations.rows_ = rows;
  activations.dtype_ = dtype;
  activations.seed_ = seed;
  return activations;
}

Activations Activations::from_file(const std::string& path) {
  Activations activations;
  activations.file_ = get(open(path));
  activations.tensors_ = activations.file_->tensors();
  std::ranges::sort(activations.tensors_, {}, &TensorInfo::name);
  return activations;
}

Activations::Input Activations::find(const LayerPlan& layer) const {
  Input input;
  if (!file_) {
    input.dtype = dtype_;
    input.rows = rows_;
    input.shape = {rows_, layer.columns};
    return input;
  }
  const auto named = [&](std::string_view name) {
    const auto it = std::ranges::lower_bound(tensors_, name, {}, &TensorInfo::name);
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
  };
  const TensorInfo* tensor = named(layer.name);
  if (!tensor) tensor = named("x");
  if (!tensor) {
    input.why_not = "the input file has no tensor of its name, and no x";
    return input;
  }
  input.tensor = *tensor;
  input.dtype = tensor->dtype;
  input.shape.assign(tensor->shape.begin(), tensor->shape.end());
  if (tensor->dtype != DType::f32 && tensor->dtype != DType::f16 && tensor->dtype != DType::bf16)
    input.why_not = fmt::format("{} is {}, where F32, F16 or BF16 is taken",
                                printable(tensor->name), dtype_name(tensor->dtype));
  else if (input.shape.empty() || input.shape.back() != layer.columns)
    input.why_not = fmt::format("{} is {}, where {} columns are needed", printable(tensor->name),
                                shape_text(tensor->shape), layer.columns);
  else
    input.rows = tensor->bytes / (dtype_bits(tensor->dtype) / 8) / layer.columns;
  return input;
}

std::vector<std::byte> Activations::read(const LayerPlan& layer, const Input& input) const {
  if (input.tensor) return get(read_tensor(*file_, *input.tensor));
  std::vector<std::byte> bytes(rows_ * layer.columns * dtype_bits(dtype_) / 8);
  Random random{seed_ ^ hash(layer.name)};
  const std::uint64_t count = rows_ * layer.columns;
  for (std::uint64_t i = 0; i < count; i += 2) {  // Box and Muller's pairs
    const double radius = std::sqrt(-2 * std::log(random.uniform()));
    const double angle = 2 * std::numbers::pi * random.uniform();
    store_float(dtype_, bytes.data(), i, static_cast<float>(radius * std::cos(angle)));
    if (i + 1 < count)
      store_float(dtype_, bytes.data(), i + 1, static_cast<float>(radius * std::sin(angle)));
  }
  return bytes;
}

}  // namespace parfait::cli
