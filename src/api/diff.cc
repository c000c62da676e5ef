// Layers in which two checkpoints differ.

#include <algorithm>
#include <unordered_set>

#include "base/result.h"
#include "formats/format.h"
#include "parfait/checkpoint.h"

namespace parfait {
namespace {

std::string shape_of(const formats::Layer& layer) {
  return fmt::format("{} × {}", layer.rows, layer.columns);
}

std::string groups_of(const formats::Layer& layer) {
  return fmt::format("rotation group {}, scale group {}", layer.rotate_group, layer.scale_group);
}

// What a declaration settles besides the groups.
std::string settings_of(const formats::Layer& layer) {
  std::string text =
      layer.full_precision ? "full_precision_matrix_mult" : "no full_precision_matrix_mult";
  if (layer.activation)
    text +=
        fmt::format(", linear_dtype {}", *layer.activation == Activation::int4 ? "int4" : "int8");
  return text;
}

class Differ {
 public:
  Differ(const Checkpoint& a, const Checkpoint& b, const ProgressCallback& progress)
      : a_(*a.state()), b_(*b.state()), callback_(progress) {}

  Result<std::vector<LayerDifference>> diff() {
    for (const formats::Layer& layer : a_.layers) progress_.total += layer.stored_bytes();
    for (const formats::Layer& layer : a_.layers) {
      if (const formats::Layer* other = b_.find(layer.name))
        PARFAIT_CHECK_OK(compare(layer, *other));
      else
        add(layer.name, "only in a", std::string(layer.format->name), "");
      progress_.done += layer.stored_bytes();
    }
    for (const formats::Layer& layer : b_.layers)
      if (!a_.find(layer.name)) add(layer.name, "only in b", "", std::string(layer.format->name));
    PARFAIT_CHECK_OK(compare_outside());
    return std::move(out_);
  }

 private:
  void add(std::string_view layer, std::string what, std::string a, std::string b) {
    out_.push_back({std::string(layer), std::move(what), std::move(a), std::move(b)});
  }

  Result<Done> compare(const formats::Layer& a, const formats::Layer& b) {
    if (a.format != b.format) {
      add(a.name, "format", std::string(a.format->name), std::string(b.format->name));
      return Done{};
    }
    if (a.rows != b.rows || a.columns != b.columns) {
      add(a.name, "shape", shape_of(a), shape_of(b));
      return Done{};
    }
    if (a.rotate_group != b.rotate_group || a.scale_group != b.scale_group)
      add(a.name, "groups", groups_of(a), groups_of(b));
    if (settings_of(a) != settings_of(b)) add(a.name, "settings", settings_of(a), settings_of(b));
    for (const formats::Part& part : a.parts) {
      if (part.role == "comfy_quant") continue;  // what it says was compared
      const TensorInfo* other = b.part(part.role);
      if (!other)
        add(a.name, part_word(part.role), std::string(part.role), "absent");
      else
        PARFAIT_CHECK_OK(compare_tensors(a.name, part_word(part.role), *part.tensor, *other));
    }
    for (const formats::Part& part : b.parts)
      if (part.role != "comfy_quant" && !a.part(part.role))
        add(a.name, part_word(part.role), "absent", std::string(part.role));
    return Done{};
  }

  static std::string part_word(std::string_view role) {
    return role == "weight" ? "bytes" : role == "bias" ? "bias" : "scales";
  }

  // Reports the tensors if they differ by dtype, shape or bytes.
  Result<Done> compare_tensors(std::string_view owner, const std::string& what, const TensorInfo& a,
                               const TensorInfo& b) {
    const auto text = [](const TensorInfo& t) {
      return fmt::format("{} {}", dtype_name(t.dtype), shape_text(t.shape));
    };
    if (a.dtype != b.dtype || !std::ranges::equal(a.shape, b.shape)) {
      add(owner, what, fmt::format("{} {}", a.name, text(a)),
          fmt::format("{} {}", b.name, text(b)));
      return Done{};
    }
    constexpr std::uint64_t piece = 4 << 20;
    std::uint64_t unequal = 0;
    for (std::uint64_t at = 0; at < a.bytes; at += piece) {
      progress_.what = owner;
      if (callback_ && !callback_(progress_))
        return make_error(ErrorCode::cancelled, "the comparison was cancelled");
      TensorInfo part_a = a, part_b = b;
      part_a.offset += at;
      part_b.offset += at;
      part_a.bytes = part_b.bytes = std::min(piece, a.bytes - at);
      PARFAIT_TRY(const ByteSpan bytes_a, a_.index->read(part_a, scratch_a_));
      PARFAIT_TRY(const ByteSpan bytes_b, b_.index->read(part_b, scratch_b_));
      if (std::memcmp(bytes_a.data(), bytes_b.data(), bytes_a.size()) != 0)
        for (std::size_t i = 0; i < bytes_a.size(); ++i) unequal += bytes_a[i] != bytes_b[i];
      a_.index->drop(part_a);
      b_.index->drop(part_b);
    }
    if (unequal)
      add(owner, what, std::string(a.name), fmt::format("{} of {} bytes differ", unequal, a.bytes));
    return Done{};
  }

  // Tensors that belong to no layer: the plain ones, and those that detection could not place.
  static std::unordered_map<std::string_view, const TensorInfo*> outside_layers(
      const formats::Checkpoint& file) {
    std::unordered_map<std::string_view, const TensorInfo*> outside;
    for (const TensorInfo& tensor : file.index->tensors()) outside.emplace(tensor.name, &tensor);
    for (const formats::Layer& layer : file.layers)
      for (const formats::Part& part : layer.parts) outside.erase(part.tensor->name);
    return outside;
  }

  Result<Done> compare_outside() {
    auto in_a = outside_layers(a_), in_b = outside_layers(b_);
    for (const TensorInfo& tensor : a_.index->tensors()) {  // in file order
      if (!in_a.contains(tensor.name)) continue;
      const auto it = in_b.find(tensor.name);
      if (it == in_b.end()) {
        add(tensor.name, "only in a", "tensor outside layers", "");
        continue;
      }
      PARFAIT_CHECK_OK(compare_tensors(tensor.name, "bytes", tensor, *it->second));
      in_b.erase(it);
    }
    for (const TensorInfo& tensor : b_.index->tensors())
      if (in_b.contains(tensor.name)) add(tensor.name, "only in b", "", "tensor outside layers");
    return Done{};
  }

  const formats::Checkpoint &a_, &b_;
  const ProgressCallback& callback_;
  Progress progress_;
  std::vector<std::byte> scratch_a_, scratch_b_;
  std::vector<LayerDifference> out_;
};

}  // namespace

Result<std::vector<LayerDifference>> diff(const Checkpoint& a, const Checkpoint& b,
                                          const ProgressCallback& progress) {
  return Differ(a, b, progress).diff();
}

}  // namespace parfait
