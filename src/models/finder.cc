#include "models/finder.h"

#include "base/floats.h"
#include "base/result.h"

namespace parfait::models {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f64;
}

}  // namespace

bool Finder::has_layer(std::string_view name) const {
  return checkpoint_.find(prefix_ + std::string(name)) != nullptr;
}

const TensorInfo* Finder::tensor(std::string_view name) const {
  return checkpoint_.index->find(prefix_ + std::string(name));
}

std::uint64_t Finder::count(std::string_view name, std::string_view rest) const {
  std::uint64_t n = 0;
  while (has_layer(fmt::format("{}{}{}", name, n, rest))) ++n;
  return n;
}

Error Finder::missing(std::string_view name) const {
  return make_error(ErrorCode::model_tensor, "{} is missing, which {} needs",
                    printable(prefix_ + std::string(name)), what_);
}

Result<Linear> Finder::linear(Spellings spellings, std::uint64_t rows,
                              std::uint64_t columns) const {
  for (const std::vector<std::string>& spelling : spellings) {
    if (!has_layer(spelling.front())) continue;
    Linear found;
    for (const std::string& name : spelling) {
      const formats::Layer* layer = checkpoint_.find(prefix_ + name);
      if (!layer) return missing(name);
      if (layer->kind != LayerKind::linear && layer->kind != LayerKind::embedding)
        return make_error(ErrorCode::model_tensor, "{} is of kind {}, where {} has a matrix",
                          printable(layer->name), layer_kind_name(layer->kind), what_);
      if ((columns != any && layer->columns != columns) ||
          (found.columns != 0 && layer->columns != found.columns))
        return make_error(ErrorCode::model_tensor,
                          "{} is [{}, {}], where {} of this size has {} columns",
                          printable(layer->name), layer->rows, layer->columns, what_,
                          columns != any ? columns : found.columns);
      found.layers.emplace_back(layer->name);
      found.layer_rows.push_back(layer->rows);
      found.columns = layer->columns;
      found.rows += layer->rows;
    }
    if (rows != any && found.rows != rows)
      return make_error(ErrorCode::model_tensor, "{} has {} rows, where {} of this size has {}",
                        printable(found.layers.front()), found.rows, what_, rows);
    return found;
  }
  return missing(spellings.begin()->front());
}

Result<const TensorInfo*> Finder::any_tensor(Names names) const {
  for (const std::string& name : names)
    if (const TensorInfo* found = tensor(name)) return found;
  return missing(*names.begin());
}

Result<std::vector<float>> Finder::vector(Names names, std::uint64_t size) const {
  PARFAIT_TRY(const TensorInfo* found, any_tensor(names));
  if (!is_float(found->dtype))
    return make_error(ErrorCode::model_tensor, "{} is {}, where {} has floats",
                      printable(found->name), dtype_name(found->dtype), what_);
  const std::uint64_t count = found->bytes / (dtype_bits(found->dtype) / 8);
  if (size != any && count != size)
    return make_error(ErrorCode::model_tensor, "{} has {} values, where {} of this size has {}",
                      printable(found->name), count, what_, size);
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes, checkpoint_.index->read(*found, scratch));
  std::vector<float> values(count);
  for (std::uint64_t i = 0; i < count; ++i) values[i] = load_float(found->dtype, bytes.data(), i);
  return values;
}

}  // namespace parfait::models
