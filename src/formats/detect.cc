// From tensors to layers: each weight gets the format that the file declares for it, or that its
// tensors prove; what can be neither is a finding.

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/result.h"
#include "formats/declarations.h"
#include "formats/format.h"
#include "formats/owners.h"

namespace parfait::formats {
namespace {

// Format strings that occur in files and that no reader of this project runs.
struct KnownElsewhere {
  std::string_view name, what;
};
constexpr KnownElsewhere known_elsewhere[] = {
    {"int8_blockwise", "convert_to_quant's block-wise int8; convert it to int8_tensorwise"},
    {"int8_rowwise", "a fork's name for row-wise int8; ComfyUI's is int8_tensorwise"},
    {"int4_tensorwise",
     "a third-party 4-bit export whose nibble order is not documented; "
     "convert it to convrot_w4a4"},
    {"float8_e4m3fn_rowwise",
     "convert_to_quant's row-wise fp8; convert it to float8_e4m3fn or mxfp8"},
    {"float8_e4m3fn_blockwise",
     "convert_to_quant's block-wise fp8; convert it to float8_e4m3fn or mxfp8"},
    {"hybrid_mxfp8", "convert_to_quant's hybrid mxfp8; convert it to mxfp8"},
    {"svdquant_w4a4",
     "SVDQuant; ComfyUI's core does not load it either; convert it to convrot_w4a4"},
    {"nf4", "bitsandbytes-like nf4; convert it to asym_w4a8_int8"},
    {"fp8", "a fork's name for fp8; ComfyUI's are float8_e4m3fn and float8_e5m2"},
    {"w4a8", "a fork's name; ComfyUI's is asym_w4a8_int8"},
    {"w4a8_int8", "a fork's name; ComfyUI's is asym_w4a8_int8"},
};

constexpr std::string_view embedding_names[] = {"embed_tokens",
                                                "word_embeddings",
                                                "position_embeddings",
                                                "token_type_embeddings",
                                                "tok_embeddings",
                                                "token_embedding",
                                                "position_embedding",
                                                "wte",
                                                "wpe",
                                                "shared"};

LayerKind kind_of(std::string_view name, const TensorInfo& weight) {
  if (weight.shape.size() >= 4) return LayerKind::convolution;
  if (weight.shape.size() == 3) return LayerKind::experts;
  const std::string_view last = name.substr(name.rfind('.') + 1);
  return std::ranges::find(embedding_names, last) != std::end(embedding_names)
             ? LayerKind::embedding
             : LayerKind::linear;
}

bool is_low_bit(DType dtype) { return dtype_bits(dtype) <= 8 && dtype != DType::boolean; }
bool is_fp8(DType dtype) { return dtype == DType::f8_e4m3 || dtype == DType::f8_e5m2; }
// Only a quantised weight has these beside it.
bool is_companion(std::string_view suffix) {
  return suffix != "weight" && suffix != "bias" && suffix != "comfy_quant";
}

std::string tensor_text(const TensorInfo& tensor) {
  return fmt::format("{} {}", dtype_name(tensor.dtype), shape_text(tensor.shape));
}

std::string parts_text(const Owner& owner) {
  std::string text;
  for (const Part& part : owner.tensors)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part.role, tensor_text(*part.tensor));
  return text;
}

class Detector {
 public:
  Detector(container::TensorIndexPtr index, const DetectOptions& options)
      : options_(options), owners_(*index) {
    out_.index = std::move(index);
    out_.findings.assign(out_.index->findings().begin(), out_.index->findings().end());
  }

  Result<std::shared_ptr<const Checkpoint>> detect() {
    PARFAIT_TRY(declarations_, collect_declarations(*out_.index, owners_, options_, out_.findings));
    for (const TensorInfo* tensor : owners_.unowned()) out_.plain_tensors.push_back(tensor);
    for (std::size_t i = 0; i < owners_.all().size(); ++i) place_owner(i);
    std::ranges::sort(out_.layers, {}, [](const Layer& layer) {
      const TensorInfo* weight = layer.part("weight");
      return std::pair(weight->shard, weight->offset);
    });
    std::ranges::sort(out_.plain_tensors, {}, [](const TensorInfo* tensor) {
      return std::pair(tensor->shard, tensor->offset);
    });
    for (std::size_t i = 0; i < out_.layers.size(); ++i)
      out_.by_name.emplace(out_.layers[i].name, static_cast<std::uint32_t>(i));
    return std::make_shared<const Checkpoint>(std::move(out_));
  }

 private:
  FindingSink sink_for(const Owner& owner) {
    const TensorInfo& first = *owner.tensors.front().tensor;
    const auto shards = out_.index->shards();
    return FindingSink(out_.findings, owner.name,
                       shards.size() > 1 ? std::string_view(shards[first.shard].reader->name())
                                         : std::string_view());
  }

  void keep_plain(const Owner& owner) {
    for (const Part& part : owner.tensors) out_.plain_tensors.push_back(part.tensor);
  }

  void place_owner(std::size_t i) {
    const Owner& owner = owners_.all()[i];
    FindingSink sink = sink_for(owner);
    if (const ForeignTool foreign = foreign_tool(owner); !foreign.tool.empty()) {
      sink.add(
          Severity::error, ErrorCode::format_foreign, owner.tensors.front().tensor->name,
          parts_text(owner), "a layer in one of ComfyUI's formats",
          fmt::format("these tensors are in the layout of {}; {}", foreign.tool, foreign.advice));
      return;
    }
    if (!owner.weight) return place_without_weight(owner, sink);
    if (declarations_.refused[i]) return;  // a finding says why
    const Marker* marker = declarations_.by_owner[i] ? &*declarations_.by_owner[i] : nullptr;
    const bool empty = marker && marker->format.empty() && marker->object.object()->empty();
    if (marker && !empty) {
      place_declared(owner, *marker, sink);
    } else {
      place_undeclared(owner, empty ? marker : nullptr, sink);
    }
  }

  void place_without_weight(const Owner& owner, FindingSink& sink) {
    for (const Part& part : owner.tensors) {
      if (part.role == "bias") {
        out_.plain_tensors.push_back(part.tensor);
      } else if (part.role != "comfy_quant") {  // an orphan marker has its finding already
        sink.add(Severity::error, ErrorCode::part_unused, part.tensor->name,
                 tensor_text(*part.tensor), fmt::format("{}.weight beside it", owner.name),
                 "a scale without its weight: a tool that renamed the weights left it behind");
      }
    }
  }

  void place_declared(const Owner& owner, const Marker& marker, FindingSink& sink) {
    const Format* format = find_format(marker.format);
    if (marker.format.empty()) return place_unnamed(owner, marker, sink);
    if (!format || format->folder == "plain") return report_unknown(marker.format, sink);
    add_layer(owner, *format, &marker, sink);
  }

  void report_unknown(const std::string& name, FindingSink& sink) {
    for (const KnownElsewhere& known : known_elsewhere) {
      if (known.name != name) continue;
      sink.add(Severity::error, ErrorCode::format_unsupported, "", name, known_format_names(),
               fmt::format("the marker's format is recognised but cannot be run: {}", known.what));
      return;
    }
    sink.add(Severity::error, ErrorCode::format_unknown, "", name, known_format_names(),
             "the marker names a format that this version does not know; it is never read as "
             "unquantized");
  }

  // A declaration with keys but no format: the INT8-Fast dialect, or one whose tensors must tell.
  void place_unnamed(const Owner& owner, const Marker& marker, FindingSink& sink) {
    if (owner.weight->dtype == DType::i8 && (marker.convrot || marker.per_row)) {
      sink.add(
          Severity::warning, ErrorCode::marker_dialect, "", marker.object.text(),
          "a key \"format\"",
          "the declaration names no format; its keys are those of INT8-Fast, so it was read as "
          "int8_tensorwise, where ComfyUI refuses it");
      add_layer(owner, *find_format("int8_tensorwise"), &marker, sink);
      return;
    }
    if (const Format* format = prove_format(owner)) {
      sink.add(Severity::warning, ErrorCode::marker_dialect, "", marker.object.text(),
               "a key \"format\"",
               fmt::format("the declaration names no format; the tensors prove {}", format->name));
      add_layer(owner, *format, &marker, sink);
      return;
    }
    sink.add(Severity::error, ErrorCode::format_undeclared, "", parts_text(owner),
             known_format_names(),
             "the declaration names no format and its tensors fit no format or several");
  }

  // The only format whose tensors these can be; null if none or several claim them.
  const Format* prove_format(const Owner& owner) const {
    const Evidence evidence{owner.name, owner.tensors, nullptr};
    const Format* found = nullptr;
    for (const Format* format : all_formats()) {
      if (!format->claims(evidence)) continue;
      if (found) return nullptr;
      found = format;
    }
    return found;
  }

  void place_undeclared(const Owner& owner, const Marker* empty_marker, FindingSink& sink) {
    const TensorInfo& weight = *owner.weight;
    const bool companions = std::ranges::any_of(
        owner.tensors, [](const Part& part) { return is_companion(part.role); });
    const Format* format = prove_format(owner);
    if (!companions && !is_low_bit(weight.dtype)) {
      if (format) return add_layer(owner, *format, nullptr, sink);
      return keep_plain(owner);  // a norm, a convolution, a table of integers
    }
    if (format) {
      if (is_low_bit(weight.dtype))
        sink.add(
            declarations_.any || empty_marker ? Severity::warning : Severity::note,
            ErrorCode::format_inferred, weight.name, parts_text(owner), "",
            fmt::format("the layer carries no marker; its tensors can only be {}, as which it was "
                        "read",
                        format->name));
      return add_layer(owner, *format, nullptr, sink);
    }
    if (is_fp8(weight.dtype) && !companions && !declarations_.any) return add_bare_fp8(owner, sink);
    if (!companions && weight.shape.size() < 2) return keep_plain(owner);
    report_undeclared(owner, sink);
  }

  // Before markers existed, whole files of bare fp8 weights were common: scale 1.
  void add_bare_fp8(const Owner& owner, FindingSink& sink) {
    if (owner.weight->shape.size() != 2) return keep_plain(owner);
    sink.add(Severity::note, ErrorCode::format_inferred, owner.weight->name, parts_text(owner), "",
             "an fp8 weight without scale in a file that declares nothing: read with scale 1");
    add_layer(owner,
              *find_format(owner.weight->dtype == DType::f8_e4m3 ? "float8_e4m3fn" : "float8_e5m2"),
              nullptr, sink);
  }

  void report_undeclared(const Owner& owner, FindingSink& sink) {
    const TensorInfo& weight = *owner.weight;
    const TensorInfo* scale = Evidence{owner.name, owner.tensors, nullptr}.find("weight_scale");
    if (weight.dtype == DType::i8 && scale && owner.tensors.size() <= 4) {
      sink.add(
          Severity::error, ErrorCode::dialect_undeclared_rotation, weight.name, parts_text(owner),
          "a marker (comfy_quant)",
          "an int8 weight with a scale and no marker may or may not be rotated, or be packed 4-bit "
          "codes: the tensors are the same, so nothing was guessed");
      return;
    }
    if (!is_low_bit(weight.dtype)) {
      for (const Part& part : owner.tensors)
        if (is_companion(part.role))
          sink.add(
              Severity::error, ErrorCode::part_unused, part.tensor->name, tensor_text(*part.tensor),
              "no such tensor",
              fmt::format(
                  "a quantization tensor beside a {} weight that nothing declares as quantised",
                  dtype_name(weight.dtype)));
      return;
    }
    sink.add(
        Severity::error, ErrorCode::format_undeclared, weight.name, parts_text(owner),
        "a marker (comfy_quant) or the tensors of one known format",
        "a low-bit weight that nothing declares; ComfyUI would read its codes as plain numbers");
  }

  void add_layer(const Owner& owner, const Format& format, const Marker* marker,
                 FindingSink& sink) {
    Layer layer;
    layer.name = owner.name;
    layer.format = &format;
    layer.kind = kind_of(owner.name, *owner.weight);
    layer.source = marker ? marker->source : Source::structure;
    assign_parts(owner, format, layer, sink);
    Marker adjusted;
    if (marker && options_.compat == Compat::comfyui && marker->convrot.value_or(false) &&
        ignores_rotation(format)) {
      sink.add(Severity::note, ErrorCode::dialect_rotation, "", marker->object.text(), "",
               fmt::format("the rotation flag on {} was ignored, as ComfyUI does", format.name));
      adjusted = *marker;
      adjusted.convrot.reset();
      marker = &adjusted;
    }
    format.settle(marker, layer, sink);
    if (marker) note_other_keys(*marker, sink);
    out_.layers.push_back(std::move(layer));
  }

  static bool ignores_rotation(const Format& format) {
    return format.folder == "nvfp4" || format.folder == "mxfp8" || format.folder == "float8";
  }

  void assign_parts(const Owner& owner, const Format& format, Layer& layer, FindingSink& sink) {
    std::vector<char> used(owner.tensors.size());
    for (const PartSpec& spec : format.parts) {
      const TensorInfo* found = nullptr;
      for (std::size_t t = 0; t < owner.tensors.size(); ++t) {
        const Part& part = owner.tensors[t];
        if (std::ranges::find(spec.suffixes, part.role) == spec.suffixes.end()) continue;
        used[t] = 1;
        if (found) {
          sink.add(Severity::error, ErrorCode::part_unused, part.tensor->name,
                   std::string(part.tensor->name), std::string(found->name),
                   fmt::format("the layer has its {} twice, under two names", spec.role));
          continue;
        }
        found = part.tensor;
        layer.parts.push_back({spec.role, found});
      }
    }
    for (std::size_t t = 0; t < owner.tensors.size(); ++t) {
      const Part& part = owner.tensors[t];
      if (used[t]) continue;
      if (part.role == "comfy_quant") {
        layer.parts.push_back(part);
        continue;
      }
      sink.add(Severity::error, ErrorCode::part_unused, part.tensor->name,
               tensor_text(*part.tensor), "no such tensor",
               fmt::format("{} does not read a tensor \"{}\", so running without it may be wrong",
                           format.name, part.role));
    }
  }

  static void note_other_keys(const Marker& marker, FindingSink& sink) {
    if (marker.other_keys.empty()) return;
    sink.add(Severity::note, ErrorCode::marker_ignored, "",
             fmt::format("{}", fmt::join(marker.other_keys, ", ")), "",
             "keys of the marker that no reader of this format uses");
  }

  const DetectOptions options_;
  Owners owners_;
  Declarations declarations_;
  Checkpoint out_;
};

}  // namespace

Result<std::shared_ptr<const Checkpoint>> detect(container::TensorIndexPtr index,
                                                 const DetectOptions& options) {
  return Detector(std::move(index), options).detect();
}

}  // namespace parfait::formats
