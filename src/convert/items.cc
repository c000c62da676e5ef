#include "convert/items.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <unordered_map>

#include "base/floats.h"
#include "base/result.h"

namespace parfait::convert {
namespace {

using models::NamePair;
using models::NameStyle;

// Columns of a head that a file can be believed.
constexpr std::uint64_t least_head = 8, most_head = 4096;

// Layers and tensors in the order of their bytes in the source, whose files are taken by name: an
// index may list them in any order.
struct Placed {
  const TensorInfo* at = nullptr;
  const formats::Layer* layer = nullptr;  // null: the tensor itself
};

// The place of each shard among all, by name.
std::vector<std::size_t> places_by_name(const container::TensorIndex& index) {
  const auto shards = index.shards();
  std::vector<std::size_t> order(shards.size()), places(shards.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {},
                    [&](std::size_t i) { return std::string_view(shards[i].reader->name()); });
  for (std::size_t place = 0; place < order.size(); ++place) places[order[place]] = place;
  return places;
}

std::vector<Placed> placed_in_order(const formats::Checkpoint& source) {
  std::vector<Placed> all;
  for (const formats::Layer& layer : source.layers) all.push_back({layer.part("weight"), &layer});
  for (const TensorInfo* tensor : source.plain_tensors)
    if (!tensor->name.ends_with("scaled_fp8")) all.push_back({tensor, nullptr});
  const std::vector<std::size_t> places = places_by_name(*source.index);
  std::ranges::stable_sort(
      all, {}, [&](const Placed& p) { return std::pair(places[p.at->shard], p.at->offset); });
  return all;
}

Item whole_layer(std::string name, const formats::Layer& layer) {
  return {std::move(name), {{&layer, 0, layer.rows}}, nullptr};
}

// "double_blocks.#.img_in" and 3, of "double_blocks.3.img_in": the first component that is a
// number.
struct Numbered {
  std::string pattern;
  std::string number;
};
std::optional<Numbered> numbered(std::string_view name) {
  for (std::size_t begin = 0; begin < name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view word = name.substr(begin, end - begin);
    if (!word.empty() && word.find_first_not_of("0123456789") == std::string_view::npos)
      return Numbered{std::string(name.substr(0, begin)) + "#" + std::string(name.substr(end)),
                      std::string(word)};
    begin = end + 1;
  }
  return {};
}

std::string with_number(std::string_view pattern, std::string_view number) {
  std::string name(pattern);
  if (const std::size_t at = name.find('#'); at != std::string::npos) name.replace(at, 1, number);
  return name;
}

// Finds the rule for a name, by hash.
class Rules {
 public:
  Rules(const std::vector<NamePair>& pairs, bool from_first) {
    for (const NamePair& pair : pairs) {
      if (!from_first) {
        for (std::size_t i = 0; i < pair.second.size(); ++i)
          by_pattern_.emplace(pair.second[i], Found{&pair, i, {}});
        continue;
      }
      by_pattern_.emplace(pair.first, Found{&pair, 0, {}});
      if (!pair.first_too.empty()) by_pattern_.emplace(pair.first_too, Found{&pair, 0, {}});
    }
  }
  struct Found {
    const NamePair* pair = nullptr;
    std::size_t part = 0;  // which of pair->second it is
    std::string number;
  };
  std::optional<Found> find(std::string_view name) const {
    if (const auto it = by_pattern_.find(name); it != by_pattern_.end()) return it->second;
    const auto split = numbered(name);
    if (!split) return {};
    const auto it = by_pattern_.find(split->pattern);
    if (it == by_pattern_.end()) return {};
    Found found = it->second;
    found.number = split->number;
    return found;
  }

 private:
  std::unordered_map<std::string_view, Found> by_pattern_;
};

class Renamer {
 public:
  Renamer(const formats::Checkpoint& source, const models::NamesFound& names,
          const Renaming& renaming)
      : source_(source),
        names_(names),
        table_(*names.table),
        renaming_(renaming),
        from_first_(names.style == table_.first),
        layers_(table_.layers, from_first_),
        tensors_(table_.tensors, from_first_),
        beside_(table_.beside, from_first_) {}

  Result<Items> rename() {
    PARFAIT_CHECK_OK(refuse_first_only());
    for (const Placed& placed : placed_in_order(source_)) {
      if (placed.layer) {
        PARFAIT_CHECK_OK(add_layer(*placed.layer));
      } else {
        PARFAIT_CHECK_OK(add_tensor(*placed.at));
      }
    }
    if (!from_first_) PARFAIT_CHECK_OK(make_tensor());
    if (unknown_)
      out_.notes.push_back(fmt::format("{} of no name in {} tables kept theirs, {} first",
                                       unknown_ == 1 ? "one layer or tensor"
                                                     : fmt::format("{} layers and "
                                                                   "tensors",
                                                                   unknown_),
                                       table_.model, printable(first_unknown_)));
    note_qkv();
    return std::move(out_);
  }

  // The names that there are, with the rows of fused layers one third after the other.
  Result<Items> put_in_thirds() {
    for (const Placed& placed : placed_in_order(source_)) {
      if (!placed.layer) {
        out_.items.push_back({std::string(placed.at->name), {}, placed.at});
        continue;
      }
      const formats::Layer& layer = *placed.layer;
      const auto name = stem(layer.name);
      const auto found = name ? layers_.find(*name) : std::nullopt;
      Item item = whole_layer(std::string(layer.name), layer);
      if (found && !found->pair->head.empty()) {
        item.segments.clear();
        for (std::size_t part = 0; part < found->pair->second.size(); ++part) {
          PARFAIT_TRY(const std::vector<Segment> rows, rows_of_part(layer, *found, part));
          item.segments.insert(item.segments.end(), rows.begin(), rows.end());
        }
      }
      out_.items.push_back(std::move(item));
    }
    return std::move(out_);
  }

 private:
  // The name without the prefix; nothing where it has another.
  std::optional<std::string_view> stem(std::string_view name) const {
    if (!name.starts_with(names_.prefix)) return {};
    return name.substr(names_.prefix.size());
  }

  void keep_name(std::string_view name) {
    if (unknown_++ == 0) first_unknown_ = std::string(name);
  }

  std::string in_file(std::string_view pattern, std::string_view number) const {
    return names_.prefix + with_number(pattern, number);
  }

  Result<Done> refuse_first_only() const {
    if (!from_first_ || table_.first_only.empty()) return Done{};
    const std::string name = in_file(table_.first_only, {});
    if (!source_.index->find(name)) return Done{};
    return make_error(ErrorCode::convert_option,
                      "tensor {}: is of {}, which {} names have no form for", printable(name),
                      table_.first_only_model, name_style_name(table_.second));
  }

  Result<Done> add_tensor(const TensorInfo& tensor) {
    const auto name = stem(tensor.name);
    if (name && !from_first_ && std::ranges::find(table_.unread, *name) != table_.unread.end()) {
      out_.notes.push_back(fmt::format("{} is left out: readers of {} names do not look at it",
                                       printable(tensor.name), name_style_name(table_.first)));
      return Done{};
    }
    if (name && from_first_ && table_.made && *name == table_.made->name) return leave_out(tensor);
    Item item{tensor_name(tensor), {}, &tensor};
    if (from_first_ && tensor.shape.size() == 4 && tensor.shape[2] == 1 && tensor.shape[3] == 1 &&
        is_pointwise(tensor.name))
      item.shape = {tensor.shape[0], tensor.shape[1]};
    out_.items.push_back(std::move(item));
    return Done{};
  }

  // Whether a tensor is of a layer that is a convolution in one style and a matrix in the other.
  bool is_pointwise(std::string_view tensor) const {
    const auto name = stem(tensor);
    if (!name || !name->ends_with(".weight")) return false;
    const auto found = layers_.find(name->substr(0, name->rfind('.')));
    return found && found->pair->rows == NamePair::Rows::pointwise;
  }

  std::string tensor_name(const TensorInfo& tensor) {
    if (const auto name = stem(tensor.name)) {
      if (const auto found = tensors_.find(*name)) return target_name(*found, 0);
      // A tensor of a layer whose weight is no matrix of floats.
      const std::size_t dot = name->rfind('.');
      const auto found =
          dot == std::string_view::npos ? std::nullopt : layers_.find(name->substr(0, dot));
      if (found && found->pair->second.size() == 1 &&
          found->pair->rows != NamePair::Rows::halves_swapped)
        return target_name(*found, 0) + std::string(name->substr(dot));
    }
    keep_name(tensor.name);
    return std::string(tensor.name);
  }

  std::string target_name(const Rules::Found& found, std::size_t part) const {
    return with_number(from_first_ ? found.pair->second[part] : found.pair->first, found.number);
  }

  // --- Tensors that one style holds and readers of the other compute ---

  // The length of a tensor that has a value for each column of a head.
  Result<std::uint64_t> head_size(std::string_view name, std::string_view of) const {
    const TensorInfo* tensor = source_.index->find(name);
    if (tensor && tensor->shape.size() == 1 && tensor->shape[0] >= least_head &&
        tensor->shape[0] <= most_head)
      return tensor->shape[0];
    return make_error(
        ErrorCode::model_tensor,
        "tensor {}: {}, expected a vector of {} to {} values: the size of a head, for {}",
        printable(name), tensor ? "is " + shape_text(tensor->shape) : "is missing", least_head,
        most_head, of);
  }

  Result<Done> leave_out(const TensorInfo& tensor) {
    const models::MadeTensor& made = *table_.made;
    PARFAIT_TRY(const std::uint64_t head, head_size(in_file(made.first_head, "0"), made.name));
    const std::vector<float> wanted = made.values(head);
    std::string difference;
    if (tensor.dtype != DType::f32 || tensor.bytes != wanted.size() * sizeof(float)) {
      difference = fmt::format("is {} {}, expected F32 [{}]", dtype_name(tensor.dtype),
                               shape_text(tensor.shape), wanted.size());
    } else {
      std::vector<std::byte> scratch;
      PARFAIT_TRY(const ByteSpan bytes, source_.index->read(tensor, scratch));
      for (std::size_t i = 0; i < wanted.size() && difference.empty(); ++i) {
        const float value = load_float(DType::f32, bytes.data(), i);
        if (value != wanted[i])
          difference = fmt::format("value {} is {:.9g}, expected {:.9g}", i, value, wanted[i]);
      }
    }
    if (!difference.empty() && renaming_.loss == Renaming::Loss::refused)
      return make_error(ErrorCode::convert_loss,
                        "tensor {}: {}: readers of {} names compute it, so what it holds would be "
                        "lost; without --lossless it is left out",
                        printable(tensor.name), difference, name_style_name(table_.second));
    out_.notes.push_back(fmt::format("{} is left out: readers of {} names compute it{}{}",
                                     printable(tensor.name), name_style_name(table_.second),
                                     difference.empty() ? "" : ", but here ", difference));
    return Done{};
  }

  Result<Done> make_tensor() {
    if (!table_.made) return Done{};
    const models::MadeTensor& made = *table_.made;
    if (source_.index->find(in_file(made.name, {}))) return Done{};
    PARFAIT_TRY(const std::uint64_t head, head_size(in_file(made.second_head, "0"), made.name));
    out_.items.push_back({std::string(made.name), {}, nullptr, {}, made.values(head)});
    out_.notes.push_back(fmt::format("{} is made: files with {} names must hold it",
                                     printable(made.name), name_style_name(table_.first)));
    return Done{};
  }

  // --- Layers ---

  Result<Done> add_layer(const formats::Layer& layer) {
    auto name = stem(layer.name);
    auto found = name ? layers_.find(*name) : std::nullopt;
    if (!found) found = beside_.find(layer.name);
    if (!found) {
      keep_name(layer.name);
      out_.items.push_back(whole_layer(std::string(layer.name), layer));
      return Done{};
    }
    if (found->pair->rows == NamePair::Rows::halves_swapped) return swap_halves(layer, *found);
    if (found->pair->rows == NamePair::Rows::pointwise) return make_pointwise(layer, *found);
    if (found->pair->second.size() == 1) {
      out_.items.push_back(whole_layer(target_name(*found, 0), layer));
      return Done{};
    }
    return from_first_ ? split(layer, *found) : fuse(layer, *found);
  }

  // A matrix that becomes a convolution is no layer any more: its tensors go by themselves.
  Result<Done> make_pointwise(const formats::Layer& layer, const Rules::Found& found) {
    if (layer.format->folder != "plain")
      return make_error(
          ErrorCode::convert_option,
          "layer {}: is {}, but must be plain floats: it is a 1 × 1 convolution in {} "
          "names and a matrix in {} (convert it to bf16 first)",
          printable(layer.name), layer.format->name, name_style_name(table_.first),
          name_style_name(table_.second));
    if (from_first_) {
      out_.items.push_back(whole_layer(target_name(found, 0), layer));
      return Done{};
    }
    for (const formats::Part& part : layer.parts) {
      if (!part.tensor) continue;
      Item item{fmt::format("{}.{}", target_name(found, 0), part.role), {}, part.tensor};
      if (part.role == "weight") item.shape = {layer.rows, layer.columns, 1, 1};
      out_.items.push_back(std::move(item));
    }
    return Done{};
  }

  Result<Done> swap_halves(const formats::Layer& layer, const Rules::Found& found) {
    if (layer.rows % 2 != 0)
      return make_error(ErrorCode::model_tensor,
                        "layer {}: has {} rows, expected an even number: two halves that change "
                        "places",
                        printable(layer.name), layer.rows);
    const std::uint64_t half = layer.rows / 2;
    out_.items.push_back(
        {target_name(found, 0), {{&layer, half, half}, {&layer, 0, half}}, nullptr});
    return Done{};
  }

  Result<Done> split(const formats::Layer& layer, const Rules::Found& found) {
    for (std::size_t i = 0; i < found.pair->second.size(); ++i) {
      PARFAIT_TRY(std::vector<Segment> rows, rows_of_part(layer, found, i));
      out_.items.push_back({target_name(found, i), std::move(rows), nullptr});
    }
    return Done{};
  }

  // The rows of a fused layer that are one of its parts'.
  Result<std::vector<Segment>> rows_of_part(const formats::Layer& layer, const Rules::Found& found,
                                            std::uint64_t part) const {
    const std::uint64_t parts = found.pair->second.size();
    std::uint64_t rows = layer.rows / parts;  // that lie together
    const bool by_head = renaming_.qkv == Renaming::Qkv::by_head && !found.pair->head.empty();
    if (by_head) {
      PARFAIT_TRY(rows, head_size(in_file(found.pair->head, found.number), layer.name));
    }
    if (rows == 0 || layer.rows % (parts * rows) != 0)
      return make_error(
          ErrorCode::model_tensor, "layer {}: has {} rows, expected a multiple of {}{}",
          printable(layer.name), layer.rows, by_head ? parts * rows : parts,
          by_head ? ": q, k and v of each head"
                  : ": " + std::string(with_number(found.pair->second[0], found.number)) +
                        " and its fellows");
    std::vector<Segment> segments;
    for (std::uint64_t at = part * rows; at < layer.rows; at += parts * rows)
      segments.push_back({&layer, at, rows});
    return segments;
  }

  // At the place of whichever part comes first; the others are passed over.
  Result<Done> fuse(const formats::Layer& layer, const Rules::Found& found) {
    const std::string name = target_name(found, 0);
    if (!fused_.emplace(name, true).second) return Done{};
    Item item{name, {}, nullptr};
    const std::string_view style = name_style_name(table_.first);
    for (const std::string_view part : found.pair->second) {
      const std::string wanted = in_file(part, found.number);
      const formats::Layer* one = source_.find(wanted);
      if (!one)
        return make_error(ErrorCode::model_tensor,
                          "layer {} is missing: {} in {} names is made of it and {}",
                          printable(wanted), printable(name), style, printable(layer.name));
      if (one->columns != layer.columns)
        return make_error(ErrorCode::model_tensor,
                          "layer {}: has {} columns, expected {} as {} has: the two are one layer "
                          "in {} names",
                          printable(wanted), one->columns, layer.columns, printable(layer.name),
                          style);
      item.segments.push_back({one, 0, one->rows});
    }
    out_.items.push_back(std::move(item));
    return Done{};
  }

  // Nothing in a tensor tells how its rows lie; shards may be the publisher's own.
  void note_qkv() {
    const bool may_be =
        std::ranges::any_of(table_.layers, [](const NamePair& pair) { return !pair.head.empty(); });
    if (!from_first_ || !may_be || renaming_.qkv == Renaming::Qkv::by_head ||
        source_.index->shards().size() < 2)
      return;
    out_.notes.push_back(
        "the fused q, k and v were taken to lie in thirds, as in Comfy's files; in MiniMaxAI's own "
        "shards they lie head by head, which cannot be seen (--qkv by-head)");
  }

  const formats::Checkpoint& source_;
  const models::NamesFound& names_;
  const models::NameTable& table_;
  const Renaming renaming_;
  const bool from_first_;
  const Rules layers_, tensors_, beside_;
  std::unordered_map<std::string, bool> fused_;
  std::uint64_t unknown_ = 0;
  std::string first_unknown_;
  Items out_;
};

}  // namespace

Items items_of(const formats::Checkpoint& source) {
  Items out;
  for (const Placed& placed : placed_in_order(source)) {
    if (placed.layer)
      out.items.push_back(whole_layer(std::string(placed.layer->name), *placed.layer));
    else
      out.items.push_back({std::string(placed.at->name), {}, placed.at});
  }
  return out;
}

Result<Items> renamed_items(const formats::Checkpoint& source, const Renaming& renaming) {
  const auto found = models::find_names(source);
  const bool known =
      found && (renaming.style == found->table->first || renaming.style == found->table->second);
  if (!known)
    return make_error(ErrorCode::model_unknown,
                      "the tensors are not those of a model with two sets of names that are known "
                      "here: FLUX.2 (klein, dev), Z-Image and MiniMax-H3 transformers and FLUX's "
                      "auto-encoders have "
                      "them");
  const bool heads = std::ranges::any_of(found->table->layers,
                                         [](const NamePair& pair) { return !pair.head.empty(); });
  if (renaming.qkv == Renaming::Qkv::by_head && (!heads || found->style != found->table->first))
    return make_error(
        ErrorCode::convert_option,
        "there are no fused layers whose rows could lie head by head: that is said "
        "of MiniMax-H3 files with the original names, and these are of {} with {} names",
        found->table->model, name_style_name(found->style));
  if (found->style == renaming.style && renaming.qkv == Renaming::Qkv::by_head)
    return Renamer(source, *found, renaming).put_in_thirds();
  if (found->style == renaming.style) {
    Items same = items_of(source);
    same.notes.push_back(fmt::format("the names are {} already", name_style_name(renaming.style)));
    return same;
  }
  return Renamer(source, *found, renaming).rename();
}

}  // namespace parfait::convert
