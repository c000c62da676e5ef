// Where layers are declared: marker tensors and header tables, brought under the layers' own names,
// into one spelling and, if asked, from one place to the other.

#include <algorithm>
#include <unordered_set>

#include "base/result.h"
#include "convert/repair_mends.h"
#include "formats/owners.h"

namespace parfait::convert {
namespace {

constexpr std::string_view table_key = "_quantization_metadata";
constexpr std::string_view table_place = "__metadata__._quantization_metadata";
constexpr std::uint64_t max_table_bytes = 64 << 20;
constexpr std::uint64_t max_marker_bytes = 64 << 10;

std::string join_reasons(const std::vector<std::string>& reasons) {
  std::string text;
  for (std::size_t i = 0; i < reasons.size(); ++i) {
    if (std::find(reasons.begin(), reasons.begin() + static_cast<std::ptrdiff_t>(i), reasons[i]) !=
        reasons.begin() + static_cast<std::ptrdiff_t>(i))
      continue;
    text += (text.empty() ? "" : "; ") + reasons[i];
  }
  return text;
}

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}

std::string qualified(std::string_view layer, std::string_view suffix) {
  return layer.empty() ? std::string(suffix) : fmt::format("{}.{}", layer, suffix);
}

struct Declared {
  std::string name;                    // as it stands
  const TensorInfo* marker = nullptr;  // null: an entry of a table
  std::uint32_t shard = 0;
  std::string text;  // a marker's bytes without padding
  std::uint64_t padding = 0;
  io::Json raw, wanted;
  std::int64_t owner = -1;
  std::vector<std::string> reasons;
  enum class Fate { kept, removed } fate = Fate::kept;
};

struct Table {
  io::Json root;  // without its layers
  bool there = false, readable = false, edited = false;
  std::vector<std::size_t> entries;  // into the declarations
};

class Mender {
 public:
  Mender(Draft& draft, const formats::Checkpoint& checkpoint, const RepairOptions& options,
         const Proofs& proofs, Unproven& unproven)
      : draft_(draft),
        checkpoint_(checkpoint),
        options_(options),
        proofs_(proofs),
        unproven_(unproven),
        owners_(draft.index()) {}

  Result<Done> mend() {
    PARFAIT_CHECK_OK(read_markers());
    for (std::uint32_t shard = 0; shard < draft_.index().shards().size(); ++shard)
      read_table(shard);
    of_owner_.resize(owners_.all().size());
    for (std::size_t i = 0; i < declared_.size(); ++i) resolve(i);
    for (std::size_t i = 0; i < owners_.all().size(); ++i) settle(i);
    // Those that go first, so that their names are free.
    for (const auto fate : {Declared::Fate::removed, Declared::Fate::kept})
      for (const Declared& declared : declared_)
        if (declared.marker && declared.fate == fate) write_marker(declared);
    for (std::uint32_t shard = 0; shard < tables_.size(); ++shard) write_table(shard);
    remove_file_wide();
    return Done{};
  }

 private:
  Result<Done> read_markers() {
    for (const formats::Owner& owner : owners_.all()) {
      for (const formats::Part& part : owner.tensors) {
        const TensorInfo& tensor = *part.tensor;
        if (part.role != "comfy_quant" || tensor.dtype != DType::u8 || tensor.shape.size() != 1 ||
            tensor.bytes > max_marker_bytes)
          continue;
        std::vector<std::byte> scratch;
        PARFAIT_TRY(const ByteSpan bytes, draft_.index().read(tensor, scratch));
        Declared declared;
        declared.name = owner.name;
        declared.marker = &tensor;
        declared.shard = tensor.shard;
        declared.text.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        const std::size_t end =
            declared.text.find_last_not_of(std::string_view(" \0\t\r\n", 5)) + 1;
        declared.padding = declared.text.size() - end;
        declared.text.resize(end);
        if (end == 0) {
          declared.raw = io::Json(io::Json::Object{});
        } else {
          auto json =
              io::parse_json(declared.text, {.max_bytes = max_marker_bytes, .max_depth = 8});
          if (!json || !json->object()) continue;  // its finding stays
          declared.raw = std::move(json).value();
        }
        declared_.push_back(std::move(declared));
        any_marker_ = true;
      }
    }
    return Done{};
  }

  void read_table(std::uint32_t shard) {
    Table& table = tables_.emplace_back();
    for (const auto& [key, value] : draft_.metadata(shard)) {
      if (key != table_key) continue;
      table.there = true;
      auto json = io::parse_json(value, {.max_bytes = max_table_bytes, .max_depth = 12});
      const io::Json* layers = json ? json->find("layers") : nullptr;
      if (!layers || !layers->object()) return;
      table.readable = true;
      for (const auto& [name, object] : *layers->object()) {
        Declared declared;
        declared.name = name;
        declared.shard = shard;
        declared.raw = object;
        table.entries.push_back(declared_.size());
        declared_.push_back(std::move(declared));
      }
      io::Json::Object rest;
      for (const auto& [name, member] : *json->object())
        if (name != "layers") rest.emplace_back(name, member);
      table.root = io::Json(std::move(rest));
      any_table_ = true;
    }
    if (!table.there) {
      table.readable = true;
      table.root = io::Json(io::Json::Object{{"format_version", io::Json(std::string("1.0"))}});
    }
  }

  void resolve(std::size_t i) {
    Declared& declared = declared_[i];
    declared.wanted = normal_declaration(declared.raw, declared.reasons);
    declared.owner = owners_.find_with_weight(declared.name);
    if (declared.owner < 0) {
      const formats::Owners::Match match = owners_.match(declared.name);
      if (match.kind != formats::Owners::Match::Kind::one) return;
      declared.owner = match.owner;
      declared.reasons.push_back(
          "a declaration bears the name of its layer's weight; ComfyUI reads a layer that is "
          "declared under another name as raw numbers");
    }
    of_owner_[static_cast<std::size_t>(declared.owner)].push_back(i);
  }

  static bool says_all_of(const io::Json& more, const io::Json& less) {
    if (!more.object() || !less.object()) return false;
    return std::ranges::all_of(*less.object(), [&](const auto& member) {
      const io::Json* other = more.find(member.first);
      return other && *other == member.second;
    });
  }

  // The declaration of all of a layer's that holds; null where they contradict one another.
  const Declared* holding(const std::vector<std::size_t>& all) const {
    const Declared* best = nullptr;
    for (const std::size_t i : all) {
      const Declared& declared = declared_[i];
      const bool table = !declared.marker;
      if (!best || (table && options_.open.compat == Compat::comfyui) ||
          (table && says_all_of(declared.wanted, best->wanted)))
        best = &declared;
    }
    if (options_.open.compat == Compat::comfyui) return best;
    for (const std::size_t i : all)
      if (!says_all_of(best->wanted, declared_[i].wanted)) return nullptr;
    return best;
  }

  void settle(std::size_t i) {
    const formats::Owner& owner = owners_.all()[i];
    if (!owner.weight) return;
    const formats::Layer* layer = checkpoint_.find(owner.name);
    const auto found = proofs_.find(std::string(owner.name));
    const Proof* proof =
        found == proofs_.end() || found->second.stored_as ? nullptr : &found->second;
    std::vector<std::size_t>& all = of_owner_[i];
    if (all.empty()) return declare(owner, layer, proof);
    if (!layer) return;
    const Declared* best = holding(all);
    if (!best || !best->wanted.object()) return;
    std::vector<std::string> reasons;
    const bool nothing = best->wanted.object()->empty();
    if (layer->format->folder == "plain") {
      if (!nothing) return;
      for (const std::size_t d : all) {
        declared_[d].fate = Declared::Fate::removed;
        declared_[d].reasons = {
            "an empty marker beside a weight that is not quantised; ComfyUI's "
            "parser fails on it"};
      }
      return;
    }
    io::Json wanted = nothing ? new_declaration(*layer, proof)
                              : complete_declaration(best->wanted, *layer, proof, reasons);
    if (!wanted.object()) return unproven_rotation(owner, *layer);
    if (nothing)
      reasons.push_back(fmt::format("an empty marker declares nothing; its tensors can only be {}",
                                    layer->format->name));
    for (const std::size_t d : all) {
      Declared& declared = declared_[d];
      if (&declared != best && !(declared.wanted == best->wanted))
        declared.reasons.emplace_back("another declaration of the layer says more, and holds");
      declared.wanted = wanted;
      declared.reasons.insert(declared.reasons.end(), reasons.begin(), reasons.end());
    }
    move(owner, wanted, all);
  }

  // A layer that nothing declares by itself.
  void declare(const formats::Owner& owner, const formats::Layer* layer, const Proof* proof) {
    if (!layer && !proof) return;
    if (layer && !wants_declaration(*layer)) return;
    const io::Json object = layer ? new_declaration(*layer, proof) : new_declaration(*proof);
    if (!object.object()) return unproven_rotation(owner, *layer);
    std::string why;
    if (proof)
      why = proof->why;
    else if (layer->source == formats::Source::legacy)
      why = "the legacy scaled_fp8 marker says so";
    else if (layer->source == formats::Source::quant_format)
      why = "the header's quant_format says so, which ComfyUI does not read";
    else
      why = fmt::format("nothing declares the layer, and its tensors can only be {}",
                        layer->format->name);
    const bool table = options_.declarations == Declarations::table ||
                       (options_.declarations == Declarations::as_they_are && any_table_ &&
                        !any_marker_ && tables_[owner.weight->shard].there);
    if (table)
      add_entry(owner, object, why);
    else
      add_marker(owner, object, why);
  }

  // Not what plain tensors are, nor bare fp8, which ComfyUI reads as it is.
  static bool wants_declaration(const formats::Layer& layer) {
    if (layer.source != formats::Source::structure) return true;
    if (layer.format->folder == "plain") return false;
    return std::ranges::any_of(layer.parts, [](const formats::Part& part) {
      return part.role != "weight" && part.role != "bias" && part.role != "comfy_quant";
    });
  }

  void unproven_rotation(const formats::Owner& owner, const formats::Layer& layer) {
    Finding finding{ErrorCode::marker_default};
    finding.severity = Severity::warning;
    finding.layer = owner.name;
    finding.tensor = owner.weight->name;
    finding.got = "no marker";
    finding.expected = "a marker with convrot_groupsize";
    finding.message = fmt::format(
        "the tensors are those of {}, but nothing in the header proves its rotation group{}",
        layer.format->name,
        options_.depth == CheckDepth::headers ? "; --deep asks the weights" : "");
    finding.file = draft_.index().shards()[owner.weight->shard].reader->name();
    unproven_.push_back(std::move(finding));
  }

  // Leaves each layer's declaration in the place that was asked for, once.
  void move(const formats::Owner& owner, const io::Json& wanted, std::vector<std::size_t>& all) {
    const bool to_table = options_.declarations == Declarations::table;
    const bool to_marker = options_.declarations == Declarations::markers;
    bool marker = false, entry = false;
    for (const std::size_t d : all) {
      Declared& declared = declared_[d];
      bool& seen = declared.marker ? marker : entry;
      if (seen || (declared.marker ? to_table : to_marker)) {
        declared.fate = Declared::Fate::removed;
        declared.reasons = {seen ? "the layer is declared twice, with the same words"
                                 : "moved, as was asked for"};
      } else {
        seen = true;
      }
    }
    if (to_table && !entry) add_entry(owner, wanted, "moved from the marker, as was asked for");
    if (to_marker && !marker) add_marker(owner, wanted, "moved from the table, as was asked for");
  }

  void add_marker(const formats::Owner& owner, const io::Json& object, const std::string& why) {
    const std::string name = qualified(owner.name, "comfy_quant");
    const std::string text = object.text();
    new_markers_.push_back({owner.weight, name, text, why, std::string(owner.name)});
  }

  void add_entry(const formats::Owner& owner, const io::Json& object, const std::string& why) {
    Table& table = tables_[owner.weight->shard];
    if (!table.readable) return;
    Declared declared;
    declared.name = owner.name;
    declared.shard = owner.weight->shard;
    declared.raw = declared.wanted = object;
    declared.owner = owners_.find_with_weight(owner.name);
    table.entries.push_back(declared_.size());
    table.edited = true;
    draft_.note(declared.shard, owner.name, table_place, "", object.text(), why);
    declared_.push_back(std::move(declared));
  }

  void write_marker(const Declared& declared) {
    const TensorInfo& tensor = *declared.marker;
    if (declared.fate == Declared::Fate::removed) {
      draft_.remove(tensor);
      draft_.note(declared.shard, declared.name, tensor.name, declared.text, "",
                  join_reasons(declared.reasons));
      return;
    }
    std::vector<std::string> reasons = declared.reasons;
    std::string text = declared.text;
    if (!(declared.raw == declared.wanted)) text = declared.wanted.text();
    // An empty marker of an unknown layer has nothing that it could be trimmed to.
    const bool trimmed = declared.padding > 0 && !text.empty();
    if (trimmed)
      reasons.push_back(
          fmt::format("{} bytes of padding stood behind the JSON, which ComfyUI's parser refuses",
                      declared.padding));
    std::string name(tensor.name);
    if (declared.owner >= 0) {
      const formats::Owner& owner = owners_.all()[static_cast<std::size_t>(declared.owner)];
      name = qualified(owner.name, "comfy_quant");
      if (name != tensor.name && !draft_.rename(tensor, name)) name = tensor.name;
    }
    if (text == declared.text && !trimmed && name == tensor.name) return;
    DraftTensor& draft = draft_.of(tensor);
    if (text != declared.text || trimmed) {
      draft.bytes = bytes_of(text);
      draft.declared.shape = {text.size()};
    }
    std::string before = declared.text;
    if (declared.padding > 0) before += fmt::format(" and {} bytes of padding", declared.padding);
    if (name != tensor.name) text = fmt::format("{}: {}", name, text);
    draft_.note(declared.shard, declared.name, tensor.name, std::move(before), std::move(text),
                join_reasons(reasons));
  }

  void write_table(std::uint32_t shard) {
    Table& table = tables_[shard];
    if (!table.readable || table.entries.empty()) return;
    io::Json::Object layers;
    std::unordered_set<std::string> names;
    for (const std::size_t d : table.entries) {
      Declared& declared = declared_[d];
      std::string name = declared.name;
      if (declared.owner >= 0) name = owners_.all()[static_cast<std::size_t>(declared.owner)].name;
      if (declared.fate == Declared::Fate::removed || !names.insert(name).second) {
        table.edited = true;
        draft_.note(shard, declared.name, table_place, declared.raw.text(), "",
                    join_reasons(declared.reasons));
        continue;
      }
      if (name != declared.name || !(declared.raw == declared.wanted)) {
        table.edited = true;
        std::string after = declared.wanted.text();
        if (name != declared.name) after = fmt::format("{}: {}", name, after);
        draft_.note(shard, declared.name, table_place, declared.raw.text(), std::move(after),
                    join_reasons(declared.reasons));
      }
      layers.emplace_back(std::move(name), std::move(declared.wanted));
    }
    if (!table.edited) return;
    auto& metadata = draft_.metadata(shard);
    const auto place =
        std::ranges::find(metadata, table_key, [](const auto& member) { return member.first; });
    if (layers.empty()) {
      if (place != metadata.end()) metadata.erase(place);
      return;
    }
    io::Json::Object root = *table.root.object();
    root.emplace_back("layers", io::Json(std::move(layers)));
    const std::string text = io::Json(std::move(root)).text();
    if (place != metadata.end())
      place->second = text;
    else
      metadata.emplace_back(std::string(table_key), text);
  }

  // What spoke for many layers at once, now that each speaks for itself.
  void remove_file_wide() {
    for (const NewMarker& marker : new_markers_) {
      if (!draft_.add(*marker.behind, marker.name, DType::u8, {marker.text.size()},
                      bytes_of(marker.text)))
        continue;
      draft_.note(marker.behind->shard, marker.layer, marker.name, "", marker.text, marker.why);
    }
    bool legacy = false, quant_format = false;
    for (const formats::Layer& layer : checkpoint_.layers) {
      legacy |= layer.source == formats::Source::legacy;
      quant_format |= layer.source == formats::Source::quant_format;
    }
    for (const TensorInfo* tensor : checkpoint_.plain_tensors) {
      constexpr std::string_view name = "scaled_fp8";
      if (!legacy || !tensor->name.ends_with(name)) continue;
      const std::string_view prefix = tensor->name.substr(0, tensor->name.size() - name.size());
      if (!prefix.empty() && !prefix.ends_with('.')) continue;
      draft_.remove(*tensor);
      draft_.note(tensor->shard, "", tensor->name,
                  fmt::format("{} {}", dtype_name(tensor->dtype), shape_text(tensor->shape)), "",
                  "each layer is declared by itself now");
    }
    for (std::uint32_t shard = 0; quant_format && shard < tables_.size(); ++shard) {
      auto& metadata = draft_.metadata(shard);
      const auto place = std::ranges::find(metadata, std::string_view("quant_format"),
                                           [](const auto& m) { return std::string_view(m.first); });
      if (place == metadata.end()) continue;
      draft_.note(shard, "", "__metadata__.quant_format", place->second, "",
                  "each layer is declared by itself now");
      metadata.erase(place);
    }
  }

  struct NewMarker {
    const TensorInfo* behind;
    std::string name, text, why, layer;
  };

  Draft& draft_;
  const formats::Checkpoint& checkpoint_;
  const RepairOptions& options_;
  const Proofs& proofs_;
  Unproven& unproven_;
  formats::Owners owners_;
  std::vector<Declared> declared_;
  std::vector<Table> tables_;
  std::vector<std::vector<std::size_t>> of_owner_;
  std::vector<NewMarker> new_markers_;
  bool any_marker_ = false, any_table_ = false;
};

}  // namespace

Result<Done> mend_declarations(Draft& draft, const formats::Checkpoint& checkpoint,
                               const RepairOptions& options, const Proofs& proofs,
                               Unproven& unproven) {
  return Mender(draft, checkpoint, options, proofs, unproven).mend();
}

}  // namespace parfait::convert
