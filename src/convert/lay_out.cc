// The tensors and metadata of a quantised file, from the source's and the targets of its layers.

#include <algorithm>
#include <filesystem>
#include <unordered_map>
#include <unordered_set>

#include "base/result.h"
#include "convert/quantize_state.h"

namespace parfait::convert {
namespace {

constexpr std::string_view marker_suffix = ".comfy_quant";
constexpr std::string_view table_key = "_quantization_metadata";

class Layout {
 public:
  explicit Layout(QuantizeState& state) : state_(state), source_(*state.checkpoint.state()) {}

  Result<Done> make() {
    state_.tensors.clear();
    state_.copies.clear();
    state_.markers.clear();
    state_.metadata.clear();
    state_.bytes = 0;
    gather();
    for (const TensorInfo& tensor : source_.index->tensors()) place(tensor);
    PARFAIT_CHECK_OK(make_metadata());
    PARFAIT_TRY(const std::vector<std::byte> header,
                container::make_header(state_.tensors, state_.metadata));
    state_.bytes = header.size();
    for (const container::TensorDeclaration& tensor : state_.tensors) {
      PARFAIT_TRY(const std::uint64_t bytes, container::tensor_bytes(tensor));
      state_.bytes += bytes;
    }
    make_fingerprint(header);
    return Done{};
  }

 private:
  // Which tensors go, and with which of them new ones come.
  void gather() {
    for (EncodedLayer& encoded : state_.encoded) {
      encoded.outputs.clear();
      names_.insert(encoded.layer->name);
      sources_gone_.insert(encoded.layer->source);
      for (const formats::Part& part : encoded.layer->parts) {
        if (!part.tensor || part.role == "bias") continue;
        if (part.role == "weight")
          weights_[part.tensor] = &encoded;
        else
          gone_.insert(part.tensor);
      }
      if (const TensorInfo* marker =
              source_.index->find(std::string(encoded.layer->name) + std::string(marker_suffix)))
        gone_.insert(marker);
    }
    for (const formats::Layer& layer : source_.layers)
      if (!names_.contains(layer.name)) sources_left_.insert(layer.source);
  }

  bool ended(formats::Source source) const {
    return sources_gone_.contains(source) && !sources_left_.contains(source);
  }

  void place(const TensorInfo& tensor) {
    if (const auto found = weights_.find(&tensor); found != weights_.end())
      return place_encoded(*found->second);
    if (gone_.contains(&tensor)) return;
    // The mark of a whole file of scaled fp8.
    if (tensor.name.ends_with("scaled_fp8") && ended(formats::Source::legacy)) return;
    state_.copies.push_back({&tensor, state_.tensors.size()});
    state_.tensors.push_back(
        {std::string(tensor.name), tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}});
  }

  void place_encoded(EncodedLayer& encoded) {
    const std::string name(encoded.layer->name);
    for (const formats::EncodedTensor& tensor : encoded.target.tensors()) {
      encoded.outputs.push_back(state_.tensors.size());
      state_.tensors.push_back(
          {name + "." + std::string(tensor.suffix), tensor.dtype, tensor.shape});
    }
    const std::string& marker = encoded.target.marker();
    if (marker.empty()) return;
    state_.markers.emplace_back(state_.tensors.size(), marker);
    state_.tensors.push_back({name + std::string(marker_suffix), DType::u8, {marker.size()}});
  }

  // Whether a table's entry is about a layer that is encoded anew. A table may leave out a prefix
  // that the tensors have.
  bool is_encoded(const std::string& entry) const {
    if (names_.contains(entry)) return true;
    return !source_.find(entry) &&
           std::ranges::any_of(state_.encoded, [&](const EncodedLayer& encoded) {
             return encoded.layer->source == formats::Source::header_table &&
                    encoded.layer->name.ends_with("." + entry);
           });
  }

  Result<Done> make_metadata() {
    std::unordered_set<std::string_view> keys;
    for (const container::Shard& shard : source_.index->shards())
      for (const auto& [key, value] : shard.metadata) {
        if (key == "quant_format" && ended(formats::Source::quant_format)) continue;
        if (key == table_key) {
          PARFAIT_CHECK_OK(add_table(value));
          continue;
        }
        if (keys.insert(key).second) state_.metadata.emplace_back(key, value);
      }
    if (table_.empty()) return Done{};
    state_.metadata.emplace_back(
        table_key, tables_ == 1 && removed_ == 0
                       ? whole_table_
                       : io::Json(io::Json::Object{{"format_version", io::Json(std::string("1.0"))},
                                                   {"layers", io::Json(std::move(table_))}})
                             .text());
    return Done{};
  }

  Result<Done> add_table(const std::string& text) {
    auto json = io::parse_json(text, {.max_bytes = std::uint64_t{100} << 20, .max_depth = 32});
    if (!json.ok())
      return make_error(ErrorCode::marker_json, "{}: {}", table_key, json.error().message);
    ++tables_;
    whole_table_ = text;
    const io::Json* layers = json->find("layers");
    if (!layers || !layers->object()) return Done{};
    for (const auto& entry : *layers->object()) {
      if (is_encoded(entry.first))
        ++removed_;
      else if (in_table_.insert(entry.first).second)
        table_.push_back(entry);
    }
    return Done{};
  }

  // Of everything that decides on the output's bytes.
  void make_fingerprint(ByteSpan header) {
    std::uint64_t hash = 0xcbf29ce484222325u;
    const auto add = [&hash](std::string_view text) {
      for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
      hash = (hash ^ 0xffu) * 0x100000001b3u;
    };
    for (const container::Shard& shard : source_.index->shards()) {
      std::error_code ignored;
      const auto time = std::filesystem::last_write_time(shard.reader->name(), ignored);
      add(fmt::format("{} {} {}", shard.reader->name(), shard.reader->size(),
                      time.time_since_epoch().count()));
    }
    for (const EncodedLayer& encoded : state_.encoded)
      add(fmt::format("{} {} {} {} {} {}", encoded.layer->name, encoded.target.format().name,
                      settings_text(encoded.target.format(), encoded.target.settings()),
                      encoded.layer->format->name, encoded.layer->rotate_group,
                      encoded.layer->scale_group));
    add(state_.quality == Quality::best ? "best" : "kitchen");
    add(state_.calibration_name);
    add({reinterpret_cast<const char*>(header.data()), header.size()});
    state_.fingerprint = fmt::format("parfait quantize 1 {:016x}", hash);
  }

  QuantizeState& state_;
  const formats::Checkpoint& source_;
  std::unordered_map<const TensorInfo*, EncodedLayer*> weights_;
  std::unordered_set<const TensorInfo*> gone_;
  std::unordered_set<std::string_view> names_;  // of encoded layers
  std::unordered_set<formats::Source> sources_gone_, sources_left_;
  std::unordered_set<std::string> in_table_;
  io::Json::Object table_;
  std::string whole_table_;
  std::size_t tables_ = 0, removed_ = 0;
};

}  // namespace

Result<Done> lay_out(QuantizeState& state) {
  for (const EncodedLayer& encoded : state.encoded) {
    QuantizeLayer& entry = state.layers[encoded.entry];
    entry.to = encoded.target.format().name;
    entry.settings = settings_text(encoded.target.format(), encoded.target.settings());
    entry.bytes = encoded.target.bytes();
    if (const TensorInfo* bias = encoded.layer->part("bias")) entry.bytes += bias->bytes;
  }
  return Layout(state).make();
}

}  // namespace parfait::convert
