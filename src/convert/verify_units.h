// What verify compares: a checkpoint as weights, biases and plain tensors that decode to numbers.
#ifndef PARFAIT_CONVERT_VERIFY_UNITS_H_
#define PARFAIT_CONVERT_VERIFY_UNITS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/format.h"

namespace parfait::convert {

struct ComparedUnit {
  const formats::Layer* layer = nullptr;  // a layer's weight; else a tensor
  const TensorInfo* tensor = nullptr;     // the weight's, or itself
  std::string_view name;                  // of the layer, or of the tensor
  std::vector<std::uint64_t> shape;       // as decoded
  std::uint64_t rows = 0, columns = 0;    // of which pieces are decoded

  std::string_view format() const;  // or dtype
  bool is_plain() const;            // stored as numbers, not as codes
  std::uint64_t stored_bytes() const;
  bool is_float() const;
  // Of a dtype whose values are not looked into: only whether bytes are the same.
  bool is_opaque() const;
};

// In file order. Companions of weights (scales, codebooks) and declarations are no units.
std::vector<ComparedUnit> units_of(const formats::Checkpoint& checkpoint);

// A name without ComfyUI's prefix of whole models, "model.diffusion_model.".
std::string_view bare_name(std::string_view name);

// A unit's data at hand. Its functions may be called from several threads at once.
class UnitData {
 public:
  static Result<UnitData> read(const formats::Checkpoint& checkpoint, const ComparedUnit& unit);
  // Rows as floats; what a layer computes with, so that pre_quant_scale counts as the weight's.
  void decode(std::uint64_t first_row, std::uint64_t rows, float* out) const;
  // A value of a tensor that is no layer; a byte of it where its dtype is_opaque().
  double value(std::uint64_t i) const;
  const formats::LayerData& parts() const { return data_; }
  ByteSpan bytes() const { return bytes_; }

 private:
  const ComparedUnit* unit_ = nullptr;
  formats::LayerData data_;  // of a layer
  std::vector<std::byte> scratch_;
  ByteSpan bytes_;                     // of a tensor
  std::vector<float> column_factors_;  // pre_quant_scale
};

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_VERIFY_UNITS_H_
