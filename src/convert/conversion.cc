#include "convert/conversion.h"

#include <algorithm>
#include <unordered_set>

#include "base/result.h"
#include "base/text.h"
#include "models/config_file.h"
#include "models/qwen3/qwen3.h"

namespace parfait::convert {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}
bool is_low_bit(const formats::Layer& layer) { return layer.format->folder != "plain"; }

std::string_view plain_name(DType dtype) {
  return dtype == DType::f32 ? "f32" : dtype == DType::f16 ? "f16" : "bf16";
}

std::string formats_text(const Item& item) {
  std::string text;
  for (const Segment& segment : item.segments)
    if (text.find(segment.layer->format->name) == std::string::npos)
      text += fmt::format("{}{}", text.empty() ? "" : " + ", segment.layer->format->name);
  return text;
}

class Planner {
 public:
  Planner(const Checkpoint& source, TargetKind container, const ConvertOptions& options)
      : source_(*source.state()), checkpoint_(source), options_(options) {
    plan_.container = container;
  }

  Result<Conversion> plan() {
    if (!options_.to.empty() || gguf()) {
      PARFAIT_TRY(target_,
                  parse_target(options_.to.empty() ? "q8_0" : options_.to, plan_.container));
    }
    PARFAIT_CHECK_OK(read_patterns());
    PARFAIT_CHECK_OK(gather_items());
    low_bit_ = std::ranges::any_of(source_.layers, is_low_bit);
    for (std::size_t i = 0; i < plan_.items.items.size(); ++i) {
      Item& item = plan_.items.items[i];
      if (item.segments.empty()) {
        PARFAIT_CHECK_OK(add_tensor(item));
      } else {
        PARFAIT_CHECK_OK(add_layer(i));
      }
    }
    if (gguf()) {
      gguf_keys();
    } else {
      safetensors_metadata();
      order_units();
    }
    plan_.notes.insert(plan_.notes.begin(), plan_.items.notes.begin(), plan_.items.notes.end());
    return std::move(plan_);
  }

 private:
  bool gguf() const { return plan_.container == TargetKind::gguf; }

  Result<Done> read_patterns() {
    if (!options_.layers.empty() && !target_)
      return make_error(ErrorCode::convert_option,
                        "layers were named to be converted, but no format to convert them to");
    // Each must match something: a slip would leave layers as they are.
    for (const std::string& pattern : options_.layers) {
      PARFAIT_TRY(const std::vector<parfait::Layer> matches, match_layers(checkpoint_, pattern));
      for (const parfait::Layer& layer : matches) named_.insert(layer.name());
    }
    return Done{};
  }

  Result<Done> gather_items() {
    using Names = ConvertOptions::Names;
    names_found_ = models::find_names(source_);
    std::optional<models::NameStyle> style;
    if (options_.names == Names::comfy) style = models::NameStyle::comfy;
    if (options_.names == Names::diffusers) style = models::NameStyle::diffusers;
    // What reads a text encoder from a GGUF file expects llama.cpp's names.
    if (!style && gguf() && names_found_ && names_found_->style == models::NameStyle::transformers)
      style = models::NameStyle::llama_cpp;
    const bool by_head = options_.qkv == ConvertOptions::Qkv::by_head;
    if (!style && by_head)
      return make_error(ErrorCode::convert_option,
                        "rows that lie head by head can only be put in thirds with names chosen: "
                        "comfy or diffusers");
    if (!style) {
      plan_.items = items_of(source_);
      return Done{};
    }
    const bool lossless = options_.loss == ConvertOptions::Loss::refused;
    PARFAIT_TRY(
        plan_.items,
        renamed_items(source_,
                      {.style = *style,
                       .qkv = by_head ? Renaming::Qkv::by_head : Renaming::Qkv::in_thirds,
                       .loss = lossless ? Renaming::Loss::refused : Renaming::Loss::allowed}));
    return Done{};
  }

  // Why the target is not for this layer; empty where it is. The outer nothing: nobody asked.
  bool wanted(const Item& item) const {
    if (!target_) return false;
    const auto any = [&](auto&& holds) {
      return std::ranges::any_of(item.segments, [&](const Segment& s) { return holds(*s.layer); });
    };
    if (gguf() && any(is_low_bit)) return true;
    if (!options_.layers.empty())
      return any([&](const formats::Layer& layer) { return named_.contains(layer.name); });
    if (low_bit_) return any(is_low_bit);
    return target_->plain() ||
           any([](const formats::Layer& layer) { return layer.kind == LayerKind::linear; });
  }

  // --- Layers ---

  Result<Done> add_layer(std::size_t index) {
    const Item& item = plan_.items.items[index];
    ConvertedLayer line;
    line.name = item.name;
    line.from = formats_text(item);
    line.columns = item.segments.front().layer->columns;
    for (const Segment& segment : item.segments) {
      line.rows += segment.rows;
      line.bytes_before += segment.layer->stored_bytes() * segment.rows /
                           std::max<std::uint64_t>(segment.layer->rows, 1);
    }
    begin_unit(item.name);
    PARFAIT_TRY(const std::string why_not_kept, fusing_refusal(source_, item.segments));
    Result<Done> added = Done{};
    if (!wanted(item)) {
      added = keep_layer(item, why_not_kept, line);
    } else if (!gguf() && why_not_kept.empty() && all_already(item)) {
      added = keep_layer(item, why_not_kept, line, target_->activation);
    } else {
      added = encode_layer(index, why_not_kept, line);
    }
    PARFAIT_CHECK_OK(std::move(added));
    end_unit();
    line.bytes_after = plan_.units.back().bytes;
    plan_.layers.push_back(std::move(line));
    return Done{};
  }

  bool all_already(const Item& item) const {
    return std::ranges::all_of(item.segments,
                               [&](const Segment& s) { return is_already(*target_, *s.layer); });
  }

  Result<Done> keep_layer(const Item& item, const std::string& why_not, ConvertedLayer& line,
                          std::optional<Activation> activation = {}) {
    line.to = item.segments.front().layer->format->name;
    if (!why_not.empty())
      return make_error(ErrorCode::convert_option,
                        "layer {}: cannot be made of the source's layers as they are: {}; with a "
                        "format for it (--to) its rows are encoded anew",
                        printable(item.name), why_not);
    PARFAIT_TRY(std::vector<KeptTensor> parts, kept_parts(source_, item, activation));
    const bool plain = !is_low_bit(*item.segments.front().layer);
    if (plain && wanted_plain()) line.to = plain_name(*wanted_plain());
    for (KeptTensor& part : parts) {
      const bool as_plain = plain || part.declaration.name == item.name + ".bias";
      PARFAIT_CHECK_OK(add_copy(std::move(part), as_plain ? wanted_plain() : std::nullopt));
    }
    return Done{};
  }

  // A source layer with the item's rows and name, as the target's encoder is asked about it.
  static formats::Layer stand_in(const Item& item) {
    formats::Layer layer = *item.segments.front().layer;
    layer.name = item.name;
    layer.rows = 0;
    for (const Segment& segment : item.segments) layer.rows += segment.rows;
    return layer;
  }

  Result<Done> encode_layer(std::size_t index, const std::string& why_not_kept,
                            ConvertedLayer& line) {
    const Item& item = plan_.items.items[index];
    const formats::Layer layer = stand_in(item);
    Encoding encoding{plan_.tensors.size(), index, weight_shape(layer), {}, {}, nullptr};
    Result<Done> settled = settle(layer, *target_, encoding);
    if (!settled.ok()) {
      line.kept = std::move(settled).error().message;
      // What GGUF's blocks cannot hold stays as it is, or where it is low-bit becomes BF16.
      const bool low_bit =
          std::ranges::any_of(item.segments, [](const Segment& s) { return is_low_bit(*s.layer); });
      if (!gguf() || (!low_bit && why_not_kept.empty()))
        return keep_layer(item, why_not_kept, line);
      PARFAIT_TRY(const ConvertTarget plain, parse_target("bf16", TargetKind::gguf));
      PARFAIT_CHECK_OK(settle(layer, plain, encoding));
    }
    line.to = encoding.name();
    for (const formats::EncodedTensor& tensor :
         encoding.encoder().tensors(encoding.shape, encoding.settings))
      PARFAIT_CHECK_OK(
          declare({fmt::format("{}.{}", item.name, tensor.suffix), tensor.dtype, tensor.shape}));
    if (encoding.block) {
      plan_.tensors[encoding.tensor].type = encoding.block->type;
      plan_.tensors[encoding.tensor].logical_shape = encoding.shape.shape;
    }
    const std::string marker = encoding.target ? encoding.target->marker() : std::string();
    plan_.units.back().encoding = std::move(encoding);
    PARFAIT_TRY(std::vector<KeptTensor> bias, kept_bias(source_, item));
    for (KeptTensor& part : bias) PARFAIT_CHECK_OK(add_copy(std::move(part), wanted_plain()));
    if (marker.empty()) return Done{};
    KeptTensor kept;
    kept.declaration = {item.name + ".comfy_quant", DType::u8, {marker.size()}};
    kept.make = [marker]() -> Result<std::vector<std::byte>> {
      const auto bytes = std::as_bytes(std::span(marker));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    return add_copy(std::move(kept), {});
  }

  Result<Done> settle(const formats::Layer& layer, const ConvertTarget& target,
                      Encoding& encoding) const {
    encoding.settings = settings_for(target, encoding.shape);
    if (target.block) {
      const std::string refusal = target.block->encoder.refusal(encoding.shape, encoding.settings);
      if (!refusal.empty())
        return make_error(ErrorCode::layer_columns, "layer {}: {} cannot hold it: {}",
                          printable(layer.name), target.name, refusal);
      encoding.block = target.block;
      return Done{};
    }
    PARFAIT_TRY(encoding.target, LayerTarget::settle(layer, *target.format, encoding.settings));
    return Done{};
  }

  // --- Tensors ---

  std::optional<DType> wanted_plain() const { return options_.plain; }

  Result<Done> add_tensor(const Item& item) {
    if (!item.tensor) return add_made(item);
    const TensorInfo& tensor = *item.tensor;
    if (gguf() && !gguf::type_of(tensor.dtype)) {
      // A hint for one loader, not a value of the model.
      if (tensor.name.ends_with(".comfy_attention.config")) {
        plan_.notes.push_back(
            fmt::format("{} is left out: a hint for ComfyUI, of a type that GGUF has none for",
                        printable(tensor.name)));
        return Done{};
      }
      return make_error(ErrorCode::convert_option,
                        "tensor {}: is {}, a type that a GGUF file cannot hold",
                        printable(tensor.name), dtype_name(tensor.dtype));
    }
    begin_unit(item.name);
    KeptTensor kept;
    kept.declaration = {item.name, tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}};
    if (!item.shape.empty()) kept.declaration.shape = item.shape;
    kept.runs = {{&tensor, 0, tensor.bytes}};
    PARFAIT_CHECK_OK(add_copy(std::move(kept), wanted_plain()));
    end_unit();
    return Done{};
  }

  Result<Done> add_made(const Item& item) {
    begin_unit(item.name);
    KeptTensor kept;
    kept.declaration = {item.name, DType::f32, {item.made.size()}};
    kept.make = [values = item.made]() -> Result<std::vector<std::byte>> {
      const auto bytes = std::as_bytes(std::span(values));
      return std::vector<std::byte>(bytes.begin(), bytes.end());
    };
    PARFAIT_CHECK_OK(add_copy(std::move(kept), {}));
    end_unit();
    return Done{};
  }

  // as: the float type that it is to have, if it is of a float type at all.
  Result<Done> add_copy(KeptTensor kept, std::optional<DType> as) {
    Copy copy;
    copy.tensor = plan_.tensors.size();
    copy.from_dtype = kept.declaration.dtype;
    if (is_float(copy.from_dtype)) {
      if (as) kept.declaration.dtype = *as;
      // Readers of GGUF files expect vectors in F32.
      if (gguf() && kept.declaration.shape.size() <= 1) kept.declaration.dtype = DType::f32;
    }
    PARFAIT_CHECK_OK(declare(kept.declaration));
    copy.from = std::move(kept);
    plan_.units.back().copies.push_back(std::move(copy));
    return Done{};
  }

  Result<Done> declare(container::TensorDeclaration declaration) {
    PlannedTensor tensor;
    PARFAIT_TRY(tensor.bytes, container::tensor_bytes(declaration));
    // Of all shards, each of whose headers would see its own names only.
    if (!names_.insert(declaration.name).second)
      return make_error(ErrorCode::header_duplicate,
                        "tensor {}: the name is taken already, so it cannot be written",
                        printable(declaration.name));
    if (gguf()) {
      tensor.type = gguf::type_of(declaration.dtype).value_or(gguf::Type::i8);
      tensor.logical_shape = declaration.shape;
    }
    tensor.declaration = std::move(declaration);
    plan_.tensors.push_back(std::move(tensor));
    return Done{};
  }

  void begin_unit(const std::string& name) {
    Unit unit;
    unit.name = name;
    unit.first = plan_.tensors.size();
    plan_.units.push_back(std::move(unit));
  }
  void end_unit() {
    Unit& unit = plan_.units.back();
    unit.count = plan_.tensors.size() - unit.first;
    for (std::size_t i = unit.first; i < plan_.tensors.size(); ++i)
      unit.bytes += plan_.tensors[i].bytes;
  }

  // Output places tensors of whole 64-byte lines first and the rest by element size, so a reader of
  // the file meets the units' first tensors so. In that order from the start, converting the file
  // again gives the same order.
  void order_units() {
    std::ranges::stable_sort(plan_.units, {}, [&](const Unit& unit) -> int {
      if (unit.count == 0) return 0;
      const PlannedTensor& tensor = plan_.tensors[unit.first];
      if (tensor.bytes % 64 == 0) return 0;
      return 500 - static_cast<int>(dtype_bits(tensor.declaration.dtype));
    });
  }

  // --- What stands in the header besides ---

  // Of all shards, the first value of a key. Declarations of formats stand in markers now.
  void safetensors_metadata() {
    std::unordered_set<std::string_view> keys = {"_quantization_metadata", "quant_format"};
    for (const container::Shard& shard : source_.index->shards())
      for (const auto& [key, value] : shard.metadata)
        if (keys.insert(key).second) plan_.metadata.emplace_back(key, value);
  }

  void gguf_keys() {
    std::string architecture = names_found_ ? std::string(names_found_->table->architecture) : "";
    if (architecture.empty()) {
      architecture = "unknown";
      plan_.notes.push_back(
          "the architecture is not known here, so general.architecture is \"unknown\"; some "
          "readers demand theirs");
    }
    if (names_found_ && names_found_->style == models::NameStyle::diffusers &&
        options_.names != ConvertOptions::Names::comfy)
      plan_.notes.push_back(
          "the names are diffusers'; readers of GGUF files expect Comfy's (--names comfy)");
    std::uint32_t file_type = target_->block ? target_->block->file_type : 0;
    if (target_->name == "f16") file_type = 1;
    if (target_->name == "bf16") file_type = 32;
    plan_.keys = {{"general.architecture", architecture},
                  {"general.quantization_version", std::uint32_t{2}},
                  {"general.file_type", file_type}};
    if (names_found_ && names_found_->table->second == models::NameStyle::llama_cpp)
      add_decoder_keys(architecture);
    std::uint64_t long_names = 0;
    for (PlannedTensor& tensor : plan_.tensors) {
      const std::string& name = tensor.declaration.name;
      if (tensor.logical_shape.empty()) tensor.logical_shape = {1};
      long_names += name.size() > gguf::longest_name;
      if (tensor.logical_shape.size() <= gguf::most_dimensions) continue;
      // As ComfyUI-GGUF reads it: the shape in a key, the tensor with its leading axes joined.
      std::vector<std::int32_t> shape;
      for (const std::uint64_t side : tensor.logical_shape)
        shape.push_back(static_cast<std::int32_t>(side));
      plan_.keys.emplace_back("comfy.gguf.orig_shape." + name, shape);
      std::vector<std::uint64_t>& joined = tensor.logical_shape;
      while (joined.size() > gguf::most_dimensions) {
        joined[1] *= joined[0];
        joined.erase(joined.begin());
      }
    }
    if (long_names)
      plan_.notes.push_back(
          fmt::format("{} names are longer than the {} bytes that ggml's own reader takes",
                      long_names, gguf::longest_name));
  }

  // What llama.cpp's readers want to know of a decoder.
  void add_decoder_keys(const std::string& architecture) {
    const std::filesystem::path path = checkpoint_.shards().front().path;
    const auto config = models::ConfigFile::beside(path);
    const auto model = config.ok() ? models::qwen3::Qwen3::find(source_, *config, path.string())
                                   : Result<std::unique_ptr<models::qwen3::Qwen3>>(config.error());
    const auto length =
        config.ok() ? config->number("max_position_embeddings", 1, 1u << 30, default_context)
                    : Result<double>(config.error());
    if (!model.ok() || !length.ok()) {
      plan_.notes.push_back(
          fmt::format("keys of the decoder's shape are left out, without which llama.cpp reads no "
                      "such file: {}",
                      model.ok() ? length.error().message : model.error().message));
      return;
    }
    const models::qwen3::Config& c = (*model)->config();
    const auto count = [&](const char* key, double value) {
      plan_.keys.emplace_back(fmt::format("{}.{}", architecture, key),
                              static_cast<std::uint32_t>(value));
    };
    const auto real = [&](const char* key, double value) {
      plan_.keys.emplace_back(fmt::format("{}.{}", architecture, key), static_cast<float>(value));
    };
    count("block_count", static_cast<double>(c.layers));
    count("context_length", *length);
    count("embedding_length", static_cast<double>(c.width));
    count("feed_forward_length", static_cast<double>(c.mlp));
    count("attention.head_count", static_cast<double>(c.heads));
    count("attention.head_count_kv", static_cast<double>(c.kv_heads));
    count("attention.key_length", static_cast<double>(c.head_size));
    count("attention.value_length", static_cast<double>(c.head_size));
    real("attention.layer_norm_rms_epsilon", static_cast<double>(c.epsilon));
    real("rope.freq_base", c.rope_theta);
    plan_.notes.push_back(
        "the vocabulary is not written: ComfyUI's loaders need none, llama.cpp's own programs do");
  }

  // Of Qwen3 without a config.json that says otherwise.
  static constexpr double default_context = 40960;

  const formats::Checkpoint& source_;
  const Checkpoint& checkpoint_;
  const ConvertOptions& options_;
  std::optional<models::NamesFound> names_found_;
  std::optional<ConvertTarget> target_;
  std::unordered_set<std::string_view> named_;  // layers that patterns match
  std::unordered_set<std::string> names_;       // of the output's tensors
  bool low_bit_ = false;                        // the source has low-bit layers
  Conversion plan_;
};

}  // namespace

Result<Conversion> plan_conversion(const Checkpoint& source, TargetKind container,
                                   const ConvertOptions& options) {
  return Planner(source, container, options).plan();
}

}  // namespace parfait::convert
