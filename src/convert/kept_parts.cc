#include "convert/kept_parts.h"

#include <algorithm>
#include <cstring>

#include "base/result.h"
#include "formats/common.h"

namespace parfait::convert {
namespace {

using formats::Layer;

// How a part follows the layer's rows.
enum class Follows {
  rows,     // its first axis, or axes, are rows
  columns,  // its second axis is rows: [groups, N]
  blocks,   // block scales in tiles of 128 rows
  nothing,  // one for the whole layer
};

Follows follows(const Layer& layer, const formats::Part& part) {
  const std::string_view folder = layer.format->folder;
  const std::uint64_t values = formats::value_count(*part.tensor);
  if (part.role == "weight" || part.role == "bias" || part.role == "weight_s_channel" ||
      part.role == "weight_s_rel")
    return Follows::rows;
  if (part.role == "weight_correction" || part.role == "weight_zeros") return Follows::columns;
  if (part.role != "weight_scale") return Follows::nothing;
  if (folder == "awq_w4a16") return Follows::columns;
  if (folder == "nvfp4" || folder == "mxfp8") return Follows::blocks;
  if (folder == "convrot_w4a4") return Follows::rows;
  return folder == "int8_tensorwise" && values == layer.rows ? Follows::rows : Follows::nothing;
}

std::uint64_t block_columns(const Layer& layer) {
  return layer.columns / (layer.scale_group ? layer.scale_group : 16);
}

// Rows that a writer added behind the layer's own.
bool padded(const Layer& layer) {
  const TensorInfo& weight = *layer.part("weight");
  return weight.shape.size() == 2 && weight.shape[0] != layer.rows;
}

const formats::Part* find_part(const Layer& layer, std::string_view role) {
  for (const formats::Part& part : layer.parts)
    if (part.role == role) return &part;
  return nullptr;
}

std::string settings_text(const Layer& layer) {
  std::string text = fmt::format("{}, rotation group {}, scale group {}", layer.format->name,
                                 layer.rotate_group, layer.scale_group);
  if (layer.activation)
    text += *layer.activation == Activation::int4 ? ", linear_dtype int4" : ", linear_dtype int8";
  if (layer.full_precision) text += ", full_precision_matrix_mult";
  return text;
}

class Mover {
 public:
  Mover(const formats::Checkpoint& source, const Item& item)
      : source_(source), item_(item), first_(*item.segments.front().layer) {
    for (const Segment& segment : item.segments) rows_ += segment.rows;
  }

  Result<KeptTensor> move(const formats::Part& part) const {
    const TensorInfo& tensor = *part.tensor;
    KeptTensor kept;
    kept.declaration = {fmt::format("{}.{}", item_.name, suffix(part)),
                        tensor.dtype,
                        {tensor.shape.begin(), tensor.shape.end()}};
    if (item_.segments.size() == 1 && item_.segments[0].whole()) {
      kept.runs = {{&tensor, 0, tensor.bytes}};
      return kept;
    }
    switch (follows(first_, part)) {
      case Follows::nothing:
        kept.runs = {{&tensor, 0, tensor.bytes}};
        return kept;
      case Follows::rows:
        move_rows(part, kept);
        return kept;
      case Follows::columns:
        kept.declaration.shape[1] = rows_;
        kept.make = [this_ = *this, role = part.role] { return this_.move_columns(role); };
        return kept;
      case Follows::blocks:
        const formats::BlockScales to{rows_, block_columns(first_)};
        kept.declaration.shape = {to.stored_rows(), to.stored_columns()};
        kept.make = [this_ = *this, role = part.role] { return this_.move_blocks(role); };
        return kept;
    }
    return kept;
  }

 private:
  // Comfy's spelling of a part's name.
  std::string_view suffix(const formats::Part& part) const {
    for (const formats::PartSpec& spec : first_.format->parts)
      if (spec.role == part.role) return spec.suffixes.front();
    return part.role;
  }

  void move_rows(const formats::Part& part, KeptTensor& kept) const {
    std::vector<std::uint64_t>& shape = kept.declaration.shape;
    if (!shape.empty()) shape[0] = rows_;
    for (const Segment& segment : item_.segments) {
      const TensorInfo& tensor = *segment.layer->part(part.role);
      const std::uint64_t row_bytes = tensor.bytes / segment.layer->rows;
      kept.runs.push_back({&tensor, segment.first * row_bytes, segment.rows * row_bytes});
    }
  }

  Result<std::vector<std::byte>> move_columns(std::string_view role) const {
    const TensorInfo& model = *first_.part(role);
    const std::uint64_t groups = model.shape[0], size = dtype_bits(model.dtype) / 8;
    std::vector<std::byte> out(groups * rows_ * size), scratch;
    std::uint64_t at = 0;
    for (const Segment& segment : item_.segments) {
      PARFAIT_TRY(const ByteSpan bytes, source_.index->read(*segment.layer->part(role), scratch));
      for (std::uint64_t g = 0; g < groups; ++g)
        std::memcpy(out.data() + (g * rows_ + at) * size,
                    bytes.data() + (g * segment.layer->rows + segment.first) * size,
                    segment.rows * size);
      at += segment.rows;
    }
    return out;
  }

  Result<std::vector<std::byte>> move_blocks(std::string_view role) const {
    const formats::BlockScales to{rows_, block_columns(first_)};
    std::vector<std::byte> out(to.stored_bytes()), scratch;
    std::uint64_t at = 0;
    for (const Segment& segment : item_.segments) {
      PARFAIT_TRY(const ByteSpan bytes, source_.index->read(*segment.layer->part(role), scratch));
      const formats::BlockScales from{segment.layer->rows, to.columns};
      for (std::uint64_t row = 0; row < segment.rows; ++row)
        for (std::uint64_t column = 0; column < to.columns; ++column)
          out[to.offset(at + row, column)] = bytes[from.offset(segment.first + row, column)];
      at += segment.rows;
    }
    return out;
  }

  const formats::Checkpoint& source_;
  Item item_;  // its own: what it makes is called later
  const Layer& first_;
  std::uint64_t rows_ = 0;
};

Result<bool> same_bytes(const formats::Checkpoint& source, const TensorInfo& a,
                        const TensorInfo& b) {
  if (a.dtype != b.dtype || a.bytes != b.bytes) return false;
  std::vector<std::byte> scratch_a, scratch_b;
  PARFAIT_TRY(const ByteSpan bytes_a, source.index->read(a, scratch_a));
  PARFAIT_TRY(const ByteSpan bytes_b, source.index->read(b, scratch_b));
  return std::ranges::equal(bytes_a, bytes_b);
}

Result<std::string> part_refusal(const formats::Checkpoint& source, const Layer& a, const Layer& b,
                                 const formats::Part& part) {
  if (part.role == "comfy_quant") return std::string();  // what it says was compared
  const TensorInfo* other = b.part(part.role);
  if (!other) return fmt::format("{} has a {} and {} has none", a.name, part.role, b.name);
  if (other->dtype != part.tensor->dtype)
    return fmt::format("the {} of {} is {}, that of {} {}", part.role, a.name,
                       dtype_name(part.tensor->dtype), b.name, dtype_name(other->dtype));
  const Follows how = follows(a, part);
  if (how != follows(b, *find_part(b, part.role)))
    return fmt::format("{} has a {} for each row and the other one for all: {} and {}",
                       how == Follows::rows ? a.name : b.name, part.role, a.name, b.name);
  if (how != Follows::nothing) return std::string();
  PARFAIT_TRY(const bool same, same_bytes(source, *part.tensor, *other));
  if (same) return std::string();
  return fmt::format("{} and {} have unlike values of {}, of which one layer has one", a.name,
                     b.name, part.role);
}

// The marker that the layer's settings make, for layers that have none of their own.
Result<KeptTensor> made_marker(const Item& item, std::uint64_t rows,
                               std::optional<Activation> activation) {
  const Layer& layer = *item.segments.front().layer;
  formats::WeightShape shape{layer.kind, {}, rows, layer.columns};
  const TensorInfo& weight = *layer.part("weight");
  shape.shape.assign(weight.shape.begin(), weight.shape.end());
  shape.shape.back() = layer.kind == LayerKind::convolution ? shape.shape.back() : layer.columns;
  formats::EncodeSettings settings;
  settings.rotate_group = layer.rotate_group;
  settings.scale_group = layer.scale_group;
  settings.full_precision = layer.full_precision;
  if (layer.activation_declared) settings.activation = layer.activation;
  if (activation) settings.activation = activation;
  if (const TensorInfo* scale = layer.part("weight_scale"))
    settings.scale_of = formats::value_count(*scale) == layer.rows ? formats::ScaleOf::row
                                                                   : formats::ScaleOf::tensor;
  const std::string text = layer.format->encoder->marker(shape, settings);
  KeptTensor kept;
  kept.declaration = {item.name + ".comfy_quant", DType::u8, {text.size()}};
  kept.make = [text]() -> Result<std::vector<std::byte>> {
    std::vector<std::byte> bytes(text.size());
    std::memcpy(bytes.data(), text.data(), text.size());
    return bytes;
  };
  return kept;
}

}  // namespace

Result<std::string> fusing_refusal(const formats::Checkpoint& source,
                                   std::span<const Segment> segments) {
  const Layer& a = *segments.front().layer;
  if (segments.size() == 1 && segments.front().whole()) return std::string();
  for (const Segment& segment : segments) {
    const Layer& b = *segment.layer;
    if (padded(b)) return fmt::format("the rows of {} are padded, so they cannot be moved", b.name);
    if (&a == &b) continue;
    if (settings_text(a) != settings_text(b))
      return fmt::format("{} is {}, {} is {}", a.name, settings_text(a), b.name, settings_text(b));
    if (b.parts.size() != a.parts.size() &&
        (find_part(b, "bias") == nullptr) != (find_part(a, "bias") == nullptr))
      return fmt::format("only one of {} and {} has a bias", a.name, b.name);
    for (const formats::Part& part : a.parts) {
      PARFAIT_TRY(std::string why, part_refusal(source, a, b, part));
      if (!why.empty()) return why;
    }
    for (const formats::Part& part : b.parts)
      if (part.role != "comfy_quant" && !find_part(a, part.role))
        return fmt::format("{} has a {} and {} has none", b.name, part.role, a.name);
  }
  return std::string();
}

Result<std::vector<KeptTensor>> kept_parts(const formats::Checkpoint& source, const Item& item,
                                           std::optional<Activation> activation) {
  const Mover mover(source, item);
  const Layer& layer = *item.segments.front().layer;
  std::vector<KeptTensor> out;
  // The bias behind what the format has, as where a layer is encoded.
  std::vector<std::string_view> roles;
  for (const formats::PartSpec& spec : layer.format->parts)
    if (spec.role != "bias") roles.push_back(spec.role);
  roles.push_back("bias");
  for (const std::string_view role : roles) {
    if (const formats::Part* part = find_part(layer, role)) {
      PARFAIT_TRY(KeptTensor kept, mover.move(*part));
      out.push_back(std::move(kept));
    }
  }
  if (layer.format->folder == "plain") return out;
  const formats::Part* marker = find_part(layer, "comfy_quant");
  if (marker && layer.source == formats::Source::marker && !activation) {
    PARFAIT_TRY(KeptTensor kept, mover.move(*marker));
    out.push_back(std::move(kept));
  } else if (layer.format->encoder) {
    std::uint64_t rows = 0;
    for (const Segment& segment : item.segments) rows += segment.rows;
    PARFAIT_TRY(KeptTensor kept, made_marker(item, rows, activation));
    out.push_back(std::move(kept));
  }
  return out;
}

Result<std::vector<KeptTensor>> kept_bias(const formats::Checkpoint& source, const Item& item) {
  const Layer& layer = *item.segments.front().layer;
  const TensorInfo* bias = layer.part("bias");
  for (const Segment& segment : item.segments) {
    const TensorInfo* other = segment.layer->part("bias");
    if ((bias == nullptr) == (other == nullptr) && (!bias || bias->dtype == other->dtype)) continue;
    return make_error(ErrorCode::plan_option,
                      "layer {}: cannot be made of {} and {}: their biases differ in type, or one "
                      "has none",
                      printable(item.name), printable(layer.name), printable(segment.layer->name));
  }
  std::vector<KeptTensor> out;
  if (!bias) return out;
  PARFAIT_TRY(KeptTensor kept, Mover(source, item).move(*find_part(layer, "bias")));
  out.push_back(std::move(kept));
  return out;
}

}  // namespace parfait::convert
