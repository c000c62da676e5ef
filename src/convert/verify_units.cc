#include "convert/verify_units.h"

#include <algorithm>
#include <tuple>

#include "base/checked.h"
#include "base/floats.h"
#include "base/result.h"
#include "formats/common.h"

namespace parfait::convert {
namespace {

// Tensors that declare something and are no numbers of the model.
constexpr std::string_view declarations[] = {"scaled_fp8", ".comfy_quant",
                                             ".comfy_attention.config"};

bool is_declaration(std::string_view name) {
  return std::ranges::any_of(declarations,
                             [&](std::string_view end) { return name.ends_with(end); });
}

std::vector<std::uint64_t> decoded_shape(const formats::Layer& layer) {
  const TensorInfo& weight = *layer.part("weight");
  if (checked_product(weight.shape) == layer.rows * layer.columns)
    return {weight.shape.begin(), weight.shape.end()};
  if (layer.experts > 1) return {layer.experts, layer.rows / layer.experts, layer.columns};
  return {layer.rows, layer.columns};
}

ComparedUnit unit_of(const TensorInfo& tensor) {
  ComparedUnit unit;
  unit.tensor = &tensor;
  unit.name = tensor.name;
  unit.shape.assign(tensor.shape.begin(), tensor.shape.end());
  unit.rows = checked_product(tensor.shape).value_or(0);
  unit.columns = 1;
  return unit;
}

bool is_float_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
    case DType::f8_e8m0:
      return true;
    default:
      return false;
  }
}

template <class Integer>
double integer_at(ByteSpan bytes, std::uint64_t i) {
  return static_cast<double>(load_at<Integer>(bytes.data(), i));
}

}  // namespace

std::string_view ComparedUnit::format() const {
  return layer ? layer->format->name : dtype_name(tensor->dtype);
}

bool ComparedUnit::is_plain() const { return !layer || layer->format->folder == "plain"; }

std::uint64_t ComparedUnit::stored_bytes() const {
  return layer ? layer->stored_bytes() : tensor->bytes;
}

bool ComparedUnit::is_float() const { return layer || is_float_dtype(tensor->dtype); }

bool ComparedUnit::is_opaque() const {
  if (layer) return false;
  switch (tensor->dtype) {
    case DType::f4:
    case DType::f6_e2m3:
    case DType::f6_e3m2:
    case DType::f8_e4m3fnuz:
    case DType::f8_e5m2fnuz:
    case DType::c64:
      return true;
    default:
      return false;
  }
}

std::vector<ComparedUnit> units_of(const formats::Checkpoint& checkpoint) {
  std::vector<ComparedUnit> units;
  for (const formats::Layer& layer : checkpoint.layers) {
    ComparedUnit unit;
    unit.layer = &layer;
    unit.tensor = layer.part("weight");
    unit.name = layer.name;
    unit.shape = decoded_shape(layer);
    unit.rows = layer.rows;
    unit.columns = layer.columns;
    units.push_back(std::move(unit));
    if (const TensorInfo* bias = layer.part("bias")) units.push_back(unit_of(*bias));
  }
  for (const TensorInfo* tensor : checkpoint.plain_tensors)
    if (!is_declaration(tensor->name)) units.push_back(unit_of(*tensor));
  std::ranges::sort(units, {}, [](const ComparedUnit& unit) {
    return std::tuple(unit.tensor->shard, unit.tensor->offset, unit.tensor->name);
  });
  return units;
}

std::string_view bare_name(std::string_view name) {
  constexpr std::string_view prefix = "model.diffusion_model.";
  if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  return name;
}

Result<UnitData> UnitData::read(const formats::Checkpoint& checkpoint, const ComparedUnit& unit) {
  UnitData data;
  data.unit_ = &unit;
  if (!unit.layer) {
    PARFAIT_TRY(data.bytes_, checkpoint.index->read(*unit.tensor, data.scratch_));
    return data;
  }
  PARFAIT_TRY(data.data_, formats::read_layer(*checkpoint.index, *unit.layer));
  const formats::Values factors(data.data_, "pre_quant_scale");
  for (std::uint64_t k = 0; k < factors.size(); ++k) data.column_factors_.push_back(factors[k]);
  return data;
}

void UnitData::decode(std::uint64_t first_row, std::uint64_t rows, float* out) const {
  if (!unit_->layer) {
    const DType dtype = unit_->tensor->dtype;
    const std::byte* from = bytes_.data() + first_row * (dtype_bits(dtype) / 8);
    if (dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16)
      return widen(dtype, from, rows, out);
    for (std::uint64_t i = 0; i < rows; ++i) out[i] = load_float(dtype, from, i);
    return;
  }
  unit_->layer->format->decode(data_, first_row, rows, out);
  if (column_factors_.empty()) return;
  for (std::uint64_t row = 0; row < rows; ++row, out += column_factors_.size())
    for (std::size_t k = 0; k < column_factors_.size(); ++k) out[k] *= column_factors_[k];
}

double UnitData::value(std::uint64_t i) const {
  switch (unit_->tensor->dtype) {
    case DType::f64:
      return load_at<double>(bytes_.data(), i);
    case DType::i8:
      return integer_at<std::int8_t>(bytes_, i);
    case DType::i16:
      return integer_at<std::int16_t>(bytes_, i);
    case DType::i32:
      return integer_at<std::int32_t>(bytes_, i);
    case DType::i64:
      return integer_at<std::int64_t>(bytes_, i);
    case DType::u16:
      return integer_at<std::uint16_t>(bytes_, i);
    case DType::u32:
      return integer_at<std::uint32_t>(bytes_, i);
    case DType::u64:
      return integer_at<std::uint64_t>(bytes_, i);
    case DType::u8:
    case DType::boolean:
      return integer_at<std::uint8_t>(bytes_, i);
    default:
      return unit_->is_opaque()
                 ? integer_at<std::uint8_t>(bytes_, i)
                 : static_cast<double>(load_float(unit_->tensor->dtype, bytes_.data(), i));
  }
}

}  // namespace parfait::convert
