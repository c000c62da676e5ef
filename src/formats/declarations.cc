#include "formats/declarations.h"

#include <algorithm>
#include <map>

#include "base/result.h"
#include "formats/markers.h"

namespace parfait::formats {
namespace {

constexpr std::uint64_t max_table_bytes = 64 << 20;  // of _quantization_metadata; real ones have kB

struct Declared {
  std::string name;
  Marker marker;
  std::string place;  // "tensor x.comfy_quant" or "the header table"
};

class Collector {
 public:
  Collector(const container::TensorIndex& index, Owners& owners, const DetectOptions& options,
            std::vector<Finding>& findings)
      : index_(index), owners_(owners), options_(options), findings_(findings) {}

  Result<Declarations> collect() {
    out_.by_owner.resize(owners_.all().size());
    out_.refused.resize(owners_.all().size());
    PARFAIT_CHECK_OK(read_marker_tensors());
    for (std::uint32_t shard = 0; shard < index_.shards().size(); ++shard) read_header_table(shard);
    for (Declared& declared : declared_) place(std::move(declared));
    report_renamed();
    out_.any = !declared_.empty();
    apply_quant_format();
    apply_legacy();
    return std::move(out_);
  }

 private:
  // The file's name for findings, where there are several files.
  std::string file_of(std::uint32_t shard) const {
    return index_.shards().size() > 1 ? index_.shards()[shard].reader->name() : std::string();
  }

  Result<Done> read_marker_tensors() {
    for (const Owner& owner : owners_.all()) {
      for (const Part& part : owner.tensors) {
        if (part.role != "comfy_quant") continue;
        const TensorInfo& tensor = *part.tensor;
        FindingSink sink(findings_, owner.name, file_of(tensor.shard));
        if (tensor.dtype != DType::u8 || tensor.shape.size() != 1) {
          sink.add(Severity::error, ErrorCode::marker_json, tensor.name,
                   fmt::format("{} {}", dtype_name(tensor.dtype), shape_text(tensor.shape)),
                   "U8 [n]", "the marker is not a row of bytes");
          refuse(owner.name);
          continue;
        }
        std::vector<std::byte> scratch;
        // A marker past any sensible size is refused by its length alone, unread.
        TensorInfo head = tensor;
        head.bytes = std::min<std::uint64_t>(head.bytes, 1 << 20);
        PARFAIT_TRY(const ByteSpan bytes, index_.read(head, scratch));
        auto marker = parse_marker({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                   sink, tensor.name);
        if (!marker) {
          refuse(owner.name);
          continue;
        }
        marker->source = Source::marker;
        marker->shard = tensor.shard;
        declared_.push_back(
            {std::string(owner.name), std::move(*marker), place_text("the marker", tensor.shard)});
      }
    }
    return Done{};
  }

  std::string place_text(std::string_view what, std::uint32_t shard) const {
    const std::string file = file_of(shard);
    return file.empty() ? std::string(what) : fmt::format("{} in {}", what, printable(file, 1000));
  }

  void refuse(std::string_view owner) {
    if (const std::int64_t i = owners_.find_with_weight(owner); i >= 0)
      out_.refused[static_cast<std::size_t>(i)] = 1;
    any_refused_ = true;
  }

  void read_header_table(std::uint32_t shard) {
    for (const auto& [key, value] : index_.shards()[shard].metadata) {
      if (key == "quant_format") quant_format_ = {value, shard};
      if (key != "_quantization_metadata") continue;
      FindingSink sink(findings_, "", file_of(shard));
      constexpr std::string_view where = "__metadata__._quantization_metadata";
      auto json = io::parse_json(value, {.max_bytes = max_table_bytes, .max_depth = 12});
      if (!json) {
        sink.add(Severity::error, ErrorCode::marker_json, where, value, "a JSON object",
                 fmt::format("the header's quantization table is not valid JSON ({})",
                             json.error().message));
        continue;
      }
      const io::Json* layers = json->find("layers");
      if (!layers || !layers->object()) {
        sink.add(Severity::error, ErrorCode::marker_json, where, json->text(),
                 "an object \"layers\"", "the header's quantization table lists no layers");
        continue;
      }
      for (const auto& [name, object] : *layers->object()) {
        FindingSink layer_sink(findings_, name, file_of(shard));
        auto marker = marker_from_json(object, layer_sink, where);
        if (!marker) {
          refuse(name);
          continue;
        }
        marker->source = Source::header_table;
        marker->shard = shard;
        declared_.push_back({name, std::move(*marker), place_text("the header table", shard)});
      }
    }
  }

  // Finds the owner that a declaration means, and merges it with what is declared there already.
  void place(Declared declared) {
    FindingSink sink(findings_, declared.name, file_of(declared.marker.shard));
    std::int64_t owner = owners_.find_with_weight(declared.name);
    if (owner < 0) {
      const Owners::Match match = owners_.match(declared.name);
      if (match.kind == Owners::Match::Kind::none) {
        sink.add(
            Severity::error, ErrorCode::marker_orphan, "", "no tensor of that name",
            declared.name + ".weight",
            fmt::format("{} declares a layer that has no weight, here or under another prefix; a "
                        "tool that renamed the weights forgot it",
                        declared.place));
        return;
      }
      if (match.kind == Owners::Match::Kind::several) {
        sink.add(Severity::error, ErrorCode::marker_ambiguous, "",
                 fmt::format("{} and {}", owners_.all()[match.owner].name,
                             owners_.all()[match.other].name),
                 "one layer",
                 fmt::format("{} declares a layer whose name fits several once a prefix is added",
                             declared.place));
        return;
      }
      owner = match.owner;
      note_renamed(declared, owners_.all()[match.owner].name);
    }
    std::optional<Marker>& slot = out_.by_owner[static_cast<std::size_t>(owner)];
    if (!slot || (slot->format.empty() && slot->object.object()->empty())) {
      slot = std::move(declared.marker);
      places_[static_cast<std::uint32_t>(owner)] = std::move(declared.place);
      return;
    }
    if (slot->object == declared.marker.object) return;
    const std::string& first = places_[static_cast<std::uint32_t>(owner)];
    if (complements(*slot, declared, first, sink)) {
      slot = std::move(declared.marker);
      return;
    }
    const bool table_wins =
        options_.compat == Compat::comfyui && declared.marker.source == Source::header_table;
    sink.add(table_wins ? Severity::note : Severity::error, ErrorCode::marker_conflict, "",
             fmt::format("{} says {}", declared.place, declared.marker.object.text()),
             fmt::format("{} says {}", first, slot->object.text()),
             table_wins
                 ? "two declarations differ; the header table was taken, as ComfyUI does"
                 : "two declarations of this layer differ; ComfyUI would take the header table "
                   "(--compat comfyui does so)");
    if (table_wins) {
      slot = std::move(declared.marker);
    } else {
      out_.refused[static_cast<std::size_t>(owner)] = 1;
    }
  }

  // A header table that says all that the marker says, and more, reads the same in every tool:
  // ComfyUI takes the table, SGLang the union. The other way round they differ, which is a
  // conflict.
  static bool complements(const Marker& marker, const Declared& table, const std::string& first,
                          FindingSink& sink) {
    if (marker.source != Source::marker || table.marker.source != Source::header_table)
      return false;
    for (const auto& [key, value] : *marker.object.object()) {
      const io::Json* other = table.marker.object.find(key);
      if (!other || !(*other == value)) return false;
    }
    sink.add(Severity::warning, ErrorCode::marker_conflict, "",
             fmt::format("{} says {}", table.place, table.marker.object.text()),
             fmt::format("{} says {}", first, marker.object.text()),
             "two declarations of this layer differ only in that the header table says more; it "
             "was taken");
    return true;
  }

  // One finding for all names that lack, or carry too much of, the same prefix.
  void note_renamed(const Declared& declared, std::string_view owner) {
    const bool longer = owner.size() > declared.name.size();
    std::string change;
    if (longer && owner.ends_with(declared.name)) {
      change =
          "lack the prefix " + std::string(owner.substr(0, owner.size() - declared.name.size()));
    } else if (!longer && declared.name.ends_with(owner)) {
      change = "carry a prefix that the tensors lack: " +
               declared.name.substr(0, declared.name.size() - owner.size());
    } else {
      change = "differ from the tensors' by a wrapper's name";
    }
    auto& group = renamed_[change];
    if (group.count++ == 0) {
      group.declared = declared.name;
      group.owner = owner;
      group.place = declared.place;
    }
  }

  void report_renamed() {
    for (const auto& [change, group] : renamed_) {
      FindingSink sink(findings_, group.declared);
      sink.add(
          Severity::warning, ErrorCode::marker_renamed, "", group.declared,
          std::string(group.owner),
          fmt::format(
              "names of {} {} {}; they were matched by their endings, where ComfyUI would read "
              "such layers as raw numbers",
              group.count, group.count == 1 ? "declaration" : "declarations", change));
    }
  }

  // quant_format speaks for every low-bit weight that has no declaration of its own.
  void apply_quant_format() {
    if (quant_format_.first.empty() || out_.any || any_refused_) return;
    std::string name = quant_format_.first;
    std::transform(name.begin(), name.end(), name.begin(), [](char c) {
      return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    });
    std::size_t count = 0;
    for (std::size_t i = 0; i < owners_.all().size(); ++i) {
      const TensorInfo* weight = owners_.all()[i].weight;
      if (!weight || dtype_bits(weight->dtype) > 8 || weight->dtype == DType::boolean) continue;
      Marker marker;
      marker.format = name;
      marker.source = Source::quant_format;
      marker.shard = quant_format_.second;
      marker.object = io::Json(io::Json::Object{{"format", io::Json(name)}});
      out_.by_owner[i] = std::move(marker);
      ++count;
    }
    if (count == 0) return;
    out_.any = true;
    FindingSink sink(findings_, "", file_of(quant_format_.second));
    sink.add(Severity::note, ErrorCode::marker_dialect, "__metadata__.quant_format",
             quant_format_.first, "",
             fmt::format(
                 "the header names one format for the whole file; layers of low-bit weights that "
                 "took it, having no marker: {}",
                 count));
  }

  struct Legacy {
    const TensorInfo* tensor;
    std::size_t layers = 0;
    bool full_precision() const { return tensor->shape.size() == 1 && tensor->shape[0] == 2; }
  };

  // The legacy marker tensor <prefix>scaled_fp8: every undeclared fp8 weight below its prefix.
  void apply_legacy() {
    constexpr std::string_view marker_name = "scaled_fp8";
    std::map<std::string_view, Legacy> by_prefix;
    for (const TensorInfo* tensor : owners_.unowned()) {
      if (!tensor->name.ends_with(marker_name)) continue;
      const std::string_view prefix =
          tensor->name.substr(0, tensor->name.size() - marker_name.size());
      if (prefix.empty() || prefix.ends_with('.')) by_prefix.try_emplace(prefix, Legacy{tensor});
    }
    if (by_prefix.empty()) return;
    out_.any = true;
    for (std::size_t i = 0; i < owners_.all().size(); ++i) {
      const Owner& owner = owners_.all()[i];
      if (!owner.weight || out_.by_owner[i] || out_.refused[i]) continue;
      if (owner.weight->dtype != DType::f8_e4m3 && owner.weight->dtype != DType::f8_e5m2) continue;
      Legacy* legacy = find_legacy(by_prefix, owner.name);
      if (!legacy) continue;
      Marker marker;
      marker.format = owner.weight->dtype == DType::f8_e4m3 ? "float8_e4m3fn" : "float8_e5m2";
      marker.source = Source::legacy;
      marker.shard = legacy->tensor->shard;
      if (legacy->full_precision()) marker.full_precision = true;
      marker.object = io::Json(io::Json::Object{{"format", io::Json(marker.format)}});
      out_.by_owner[i] = std::move(marker);
      ++legacy->layers;
    }
    for (const auto& [prefix, legacy] : by_prefix) {
      const TensorInfo& tensor = *legacy.tensor;
      FindingSink sink(findings_, "", file_of(tensor.shard));
      sink.add(
          Severity::note, ErrorCode::marker_dialect, tensor.name,
          fmt::format("{} {}", dtype_name(tensor.dtype), shape_text(tensor.shape)), "",
          fmt::format(
              "a legacy scaled-fp8 marker, by which layers were read as float8: {}{}",
              legacy.layers,
              legacy.full_precision() ? ", with full_precision_matrix_mult (two elements)" : ""));
    }
  }

  // The marker of the shortest prefix of name, of which at most a few components are looked at.
  static Legacy* find_legacy(std::map<std::string_view, Legacy>& by_prefix, std::string_view name) {
    std::size_t end = 0;
    for (int components = 0; components < 8 && end != std::string_view::npos; ++components) {
      if (const auto it = by_prefix.find(name.substr(0, end)); it != by_prefix.end())
        return &it->second;
      end = name.find('.', end);
      if (end != std::string_view::npos) ++end;
    }
    return nullptr;
  }

  const container::TensorIndex& index_;
  Owners& owners_;
  const DetectOptions& options_;
  std::vector<Finding>& findings_;
  Declarations out_;
  std::vector<Declared> declared_;
  std::unordered_map<std::uint32_t, std::string> places_;
  struct Renamed {
    std::size_t count = 0;
    std::string declared, place;
    std::string_view owner;
  };
  std::map<std::string, Renamed> renamed_;
  std::pair<std::string, std::uint32_t> quant_format_;
  bool any_refused_ = false;
};

}  // namespace

Result<Declarations> collect_declarations(const container::TensorIndex& index, Owners& owners,
                                          const DetectOptions& options,
                                          std::vector<Finding>& findings) {
  return Collector(index, owners, options, findings).collect();
}

}  // namespace parfait::formats
