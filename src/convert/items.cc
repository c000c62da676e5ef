#include "convert/items.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "base/result.h"

namespace parfait::convert {
namespace {

using models::NamePair;
using models::NameStyle;

// Layers and tensors in the order of their bytes in the source.
struct Placed {
  const TensorInfo* at = nullptr;
  const formats::Layer* layer = nullptr;  // null: the tensor itself
};

std::vector<Placed> placed_in_order(const formats::Checkpoint& source) {
  std::vector<Placed> all;
  for (const formats::Layer& layer : source.layers) all.push_back({layer.part("weight"), &layer});
  for (const TensorInfo* tensor : source.plain_tensors)
    if (!tensor->name.ends_with("scaled_fp8")) all.push_back({tensor, nullptr});
  std::ranges::stable_sort(all, {},
                           [](const Placed& p) { return std::pair(p.at->shard, p.at->offset); });
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
  Rules(const std::vector<NamePair>& pairs, NameStyle from) {
    for (const NamePair& pair : pairs) {
      if (from == NameStyle::diffusers) {
        for (std::size_t i = 0; i < pair.diffusers.size(); ++i)
          by_pattern_.emplace(pair.diffusers[i], Found{&pair, i, {}});
        continue;
      }
      by_pattern_.emplace(pair.comfy, Found{&pair, 0, {}});
      if (!pair.comfy_too.empty()) by_pattern_.emplace(pair.comfy_too, Found{&pair, 0, {}});
    }
  }
  struct Found {
    const NamePair* pair = nullptr;
    std::size_t part = 0;  // which of pair->diffusers it is
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
  Renamer(const formats::Checkpoint& source, const models::NamesFound& names, NameStyle to)
      : source_(source),
        names_(names),
        to_(to),
        layers_(names.table->layers, names.style),
        tensors_(names.table->tensors, names.style) {}

  Result<Items> rename() {
    for (const Placed& placed : placed_in_order(source_)) {
      if (!placed.layer) {
        add_tensor(*placed.at);
        continue;
      }
      PARFAIT_CHECK_OK(add_layer(*placed.layer));
    }
    if (unknown_)
      out_.notes.push_back(fmt::format("{} of no name in {} tables kept theirs, {} first",
                                       unknown_ == 1 ? "one layer or tensor"
                                                     : fmt::format("{} layers and "
                                                                   "tensors",
                                                                   unknown_),
                                       names_.table->model, printable(first_unknown_)));
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

  void add_tensor(const TensorInfo& tensor) {
    out_.items.push_back({tensor_name(tensor), {}, &tensor});
  }

  std::string tensor_name(const TensorInfo& tensor) {
    const auto name = stem(tensor.name);
    if (name) {
      if (const auto found = tensors_.find(*name)) return target_name(*found, 0);
      // A tensor of a layer whose weight is no matrix of floats.
      const std::size_t dot = name->rfind('.');
      const auto found =
          dot == std::string_view::npos ? std::nullopt : layers_.find(name->substr(0, dot));
      if (found && found->pair->diffusers.size() == 1 && found->pair->rows == NamePair::Rows::same)
        return target_name(*found, 0) + std::string(name->substr(dot));
    }
    keep_name(tensor.name);
    return std::string(tensor.name);
  }

  std::string target_name(const Rules::Found& found, std::size_t part) const {
    return with_number(to_ == NameStyle::comfy ? found.pair->comfy : found.pair->diffusers[part],
                       found.number);
  }

  Result<Done> add_layer(const formats::Layer& layer) {
    const auto name = stem(layer.name);
    const auto found = name ? layers_.find(*name) : std::nullopt;
    if (!found) {
      keep_name(layer.name);
      out_.items.push_back(whole_layer(std::string(layer.name), layer));
      return Done{};
    }
    if (found->pair->rows == NamePair::Rows::halves_swapped) return swap_halves(layer, *found);
    const std::size_t parts = found->pair->diffusers.size();
    if (parts == 1) {
      out_.items.push_back(whole_layer(target_name(*found, 0), layer));
      return Done{};
    }
    return to_ == NameStyle::diffusers ? split(layer, *found) : fuse(layer, *found);
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
    const std::uint64_t parts = found.pair->diffusers.size();
    if (layer.rows % parts != 0)
      return make_error(ErrorCode::model_tensor,
                        "layer {}: has {} rows, expected a multiple of {}: {} and its fellows",
                        printable(layer.name), layer.rows, parts, target_name(found, 0));
    const std::uint64_t rows = layer.rows / parts;
    for (std::size_t i = 0; i < parts; ++i)
      out_.items.push_back({target_name(found, i), {{&layer, i * rows, rows}}, nullptr});
    return Done{};
  }

  // At the place of whichever part comes first; the others are passed over.
  Result<Done> fuse(const formats::Layer& layer, const Rules::Found& found) {
    const std::string name = target_name(found, 0);
    if (!fused_.emplace(name, true).second) return Done{};
    Item item{name, {}, nullptr};
    for (const std::string_view part : found.pair->diffusers) {
      const std::string wanted = names_.prefix + with_number(part, found.number);
      const formats::Layer* one = source_.find(wanted);
      if (!one)
        return make_error(
            ErrorCode::model_tensor, "layer {} is missing: {} in {} names is made of it and {}",
            printable(wanted), printable(name), name_style_name(to_), printable(layer.name));
      if (one->columns != layer.columns)
        return make_error(ErrorCode::model_tensor,
                          "layer {}: has {} columns, expected {} as {} has: the two are one layer "
                          "in {} names",
                          printable(wanted), one->columns, layer.columns, printable(layer.name),
                          name_style_name(to_));
      item.segments.push_back({one, 0, one->rows});
    }
    out_.items.push_back(std::move(item));
    return Done{};
  }

  const formats::Checkpoint& source_;
  const models::NamesFound& names_;
  const NameStyle to_;
  const Rules layers_, tensors_;
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

Result<Items> renamed_items(const formats::Checkpoint& source, models::NameStyle style) {
  const auto found = models::find_names(source);
  if (!found)
    return make_error(ErrorCode::model_unknown,
                      "the tensors are not those of a model with two sets of names that are known "
                      "here: FLUX.2 (klein, dev) and Z-Image transformers have them");
  if (found->style == style) {
    Items same = items_of(source);
    same.notes.push_back(fmt::format("the names are {} already", name_style_name(style)));
    return same;
  }
  return Renamer(source, *found, style).rename();
}

}  // namespace parfait::convert
