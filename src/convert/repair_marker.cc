// One declaration of a layer: other tools' spellings made ComfyUI's, and what is missing added.

#include <algorithm>
#include <array>

#include "base/result.h"
#include "convert/repair_mends.h"

namespace parfait::convert {
namespace {

// In the order in which ComfyUI's saver and the published files have them.
constexpr std::string_view key_order[] = {
    "format",     "full_precision_matrix_mult", "per_row",          "group_size",
    "convrot",    "convrot_groupsize",          "quant_group_size", "linear_dtype",
    "num_experts"};
// Those that readers look up under "params" too.
constexpr std::string_view nested_keys[] = {
    "convrot",      "convrot_groupsize", "group_size",
    "linear_dtype", "quant_group_size",  "per_row",
    "format",       "num_experts",       "full_precision_matrix_mult"};

template <std::size_t n>
bool is_one_of(const std::string_view (&keys)[n], std::string_view key) {
  return std::ranges::find(keys, key) != std::end(keys);
}

std::size_t rank_of(std::string_view key) {
  return static_cast<std::size_t>(std::ranges::find(key_order, key) - std::begin(key_order));
}

// Puts a key that is not there where its place is among the known ones.
void insert(io::Json::Object& object, std::string_view key, io::Json value) {
  auto place = object.begin();
  for (auto it = object.begin(); it != object.end(); ++it)
    if (rank_of(it->first) < rank_of(key)) place = it + 1;
  object.emplace(place, std::string(key), std::move(value));
}

bool has(const io::Json::Object& object, std::string_view key) {
  return std::ranges::any_of(object, [&](const auto& member) { return member.first == key; });
}
void remove_key(io::Json::Object& object, std::string_view key) {
  std::erase_if(object, [&](const auto& member) { return member.first == key; });
}

io::Json number(std::uint64_t value) { return io::Json(static_cast<std::int64_t>(value)); }

// Columns that share a scale, as the scales' shape has it; 0 where it does not tell.
std::uint64_t proven_scale_group(const formats::Layer& layer) {
  const bool awq = layer.format->name == "awq_w4a16";
  const TensorInfo* scales = layer.part(awq ? "weight_scale" : "weight_s_rel");
  if (!scales || scales->shape.size() != 2 || layer.columns == 0) return 0;
  const std::uint64_t groups = scales->shape[awq ? 0 : 1];
  return groups != 0 && layer.columns % groups == 0 ? layer.columns / groups : 0;
}

bool has_scale_group(const formats::Format& format) {
  return format.name == "asym_w4a8_int8" || format.name == "w6a8_int8" ||
         format.name == "awq_w4a16";
}

void add_scale_group(io::Json::Object& object, const formats::Layer& layer,
                     std::vector<std::string>& reasons) {
  if (!has_scale_group(*layer.format) || has(object, "group_size")) return;
  const std::uint64_t group = proven_scale_group(layer);
  if (group == 0) return;
  insert(object, "group_size", number(group));
  reasons.push_back(fmt::format("the shape of its scales proves group_size {}", group));
}

void add_rotation(io::Json::Object& object, const formats::Layer& layer, const Proof* proof,
                  std::vector<std::string>& reasons) {
  if (proof) {
    if (proof->rotate_group == 0) {
      remove_key(object, "convrot_groupsize");
    } else {
      if (layer.format->name == "int8_tensorwise") {
        remove_key(object, "convrot");
        insert(object, "convrot", io::Json(true));
      }
      if (!has(object, "convrot_groupsize"))
        insert(object, "convrot_groupsize", number(proof->rotate_group));
    }
    reasons.push_back(proof->why);
    return;
  }
  if (layer.rotate_group == 0 || has(object, "convrot_groupsize") ||
      layer.columns % layer.rotate_group != 0)
    return;
  insert(object, "convrot_groupsize", number(layer.rotate_group));
  reasons.push_back(fmt::format(
      "{} is what ComfyUI takes where the key is absent; SGLang demands it", layer.rotate_group));
}

}  // namespace

io::Json normal_declaration(const io::Json& raw, std::vector<std::string>& reasons) {
  if (const std::string* name = raw.string()) {
    reasons.emplace_back("a declaration is an object; ComfyUI fails on a bare string");
    return io::Json(io::Json::Object{{"format", io::Json(*name)}});
  }
  const io::Json::Object* object = raw.object();
  const io::Json* params = raw.find("params");
  if (!object || !params || !params->object()) return raw;
  io::Json::Object out, left;
  for (const auto& [key, value] : *object)
    if (key != "params") out.emplace_back(key, value);
  for (const auto& [key, value] : *params->object()) {
    if (!is_one_of(nested_keys, key)) {
      left.emplace_back(key, value);
      continue;
    }
    const io::Json* flat = raw.find(key);
    if (flat && !(*flat == value)) return raw;  // a conflict, which nothing settles
    if (!flat) insert(out, key, value);
  }
  if (left.size() == params->object()->size()) return raw;
  if (!left.empty()) out.emplace_back("params", io::Json(std::move(left)));
  reasons.emplace_back("keys under \"params\" belong to the top, where every reader looks");
  return io::Json(std::move(out));
}

io::Json complete_declaration(const io::Json& raw, const formats::Layer& layer, const Proof* proof,
                              std::vector<std::string>& reasons) {
  if (!raw.object()) return raw;
  io::Json::Object object = *raw.object();
  if (!has(object, "format")) {
    insert(object, "format", io::Json(std::string(layer.format->name)));
    reasons.push_back(layer.format->name == "int8_tensorwise"
                          ? "ComfyUI demands \"format\"; an int8 weight with these keys is the "
                            "INT8-Fast dialect of int8_tensorwise"
                          : "ComfyUI demands \"format\", and these tensors can be no other");
  }
  add_scale_group(object, layer, reasons);
  add_rotation(object, layer, proof, reasons);
  return io::Json(std::move(object));
}

io::Json new_declaration(const formats::Layer& layer, const Proof* proof) {
  if (layer.rotate_group != 0 && !proof) return {};
  io::Json::Object object;
  object.emplace_back("format", io::Json(std::string(layer.format->name)));
  if (layer.full_precision) insert(object, "full_precision_matrix_mult", io::Json(true));
  std::vector<std::string> ignored;
  add_scale_group(object, layer, ignored);
  if (proof) add_rotation(object, layer, proof, ignored);
  return io::Json(std::move(object));
}

io::Json new_declaration(const Proof& proof) {
  io::Json::Object object;
  object.emplace_back("format", io::Json(std::string(proof.format)));
  if (proof.format == "int8_tensorwise" && proof.rotate_group != 0)
    insert(object, "convrot", io::Json(true));
  if (proof.rotate_group != 0) insert(object, "convrot_groupsize", number(proof.rotate_group));
  return io::Json(std::move(object));
}

}  // namespace parfait::convert
