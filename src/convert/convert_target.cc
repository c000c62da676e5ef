#include "convert/convert_target.h"

#include <charconv>
#include <vector>

#include "base/result.h"
#include "base/text.h"
#include "formats/common.h"

namespace parfait::convert {
namespace {

std::vector<std::string_view> names_of(TargetKind kind) {
  std::vector<std::string_view> names;
  for (const formats::Format* format : formats::all_formats())
    if (format->encoder && (kind == TargetKind::safetensors || format->folder == "plain"))
      names.push_back(format->name);
  if (kind == TargetKind::gguf)
    for (const gguf::BlockType& type : gguf::block_types()) names.push_back(type.name);
  return names;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  constexpr std::string_view separators = " ,\t";
  for (std::size_t begin = 0;
       (begin = text.find_first_not_of(separators, begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

Error unknown_format(std::string_view name, TargetKind kind) {
  const std::vector<std::string_view> names = names_of(kind);
  const std::string nearest = nearest_name(name, names);
  return make_error(
      ErrorCode::convert_option, "{} is no format that {}{}; there are {}", printable(name),
      kind == TargetKind::gguf ? "a GGUF file is written in" : "layers can be converted to",
      nearest.empty() ? "" : fmt::format(", {} is near", nearest), target_names(kind));
}

Result<Done> read_setting(std::string_view word, ConvertTarget& target) {
  const std::size_t equals = word.find('=');
  const std::string_view key = word.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  const auto number = [&](std::optional<std::uint32_t>& out) {
    std::uint32_t parsed = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
    if (error != std::errc() || end != value.data() + value.size()) return false;
    out = parsed;
    return true;
  };
  bool understood = false;
  if (key == "group") understood = number(target.rotate_group);
  if (key == "scale_group") understood = number(target.scale_group);
  if (key == "scale" && (value == "row" || value == "tensor")) {
    target.scale_of = value == "row" ? formats::ScaleOf::row : formats::ScaleOf::tensor;
    understood = true;
  }
  if (key == "activation" && (value == "int4" || value == "int8")) {
    target.activation = value == "int4" ? Activation::int4 : Activation::int8;
    understood = true;
  }
  if (understood) return Done{};
  return make_error(ErrorCode::convert_option,
                    "{}: is no setting of a format; there are group=N (ConvRot; 0: not rotated), "
                    "scale_group=N, scale=row|tensor and activation=int4|int8",
                    printable(word));
}

}  // namespace

std::string target_names(TargetKind kind) {
  std::string text;
  for (const std::string_view name : names_of(kind)) {
    text += text.empty() ? "" : ", ";
    text += name;
  }
  return text;
}

Result<ConvertTarget> parse_target(std::string_view text, TargetKind kind) {
  const std::vector<std::string_view> words = words_of(text);
  const std::string_view name = words.empty() ? std::string_view() : words.front();
  ConvertTarget target;
  if (kind == TargetKind::gguf)
    for (const gguf::BlockType& type : gguf::block_types())
      if (type.name == name) target.block = &type, target.name = type.name;
  const formats::Format* format = formats::find_format(name);
  if (format && format->encoder && (kind == TargetKind::safetensors || format->folder == "plain"))
    target.format = format, target.name = format->name;
  if (!target.format && !target.block) {
    for (const gguf::BlockType& type : gguf::block_types())
      if (type.name == name)
        return make_error(ErrorCode::convert_option,
                          "{}: is a type of GGUF files; end the target in .gguf, or say --gguf",
                          name);
    if (format && kind == TargetKind::gguf)
      return make_error(ErrorCode::convert_option, "{}: cannot stand in a GGUF file; there are {}",
                        name, target_names(kind));
    return unknown_format(name, kind);
  }
  for (std::size_t i = 1; i < words.size(); ++i) PARFAIT_CHECK_OK(read_setting(words[i], target));
  return target;
}

formats::EncodeSettings settings_for(const ConvertTarget& target,
                                     const formats::WeightShape& shape) {
  formats::EncodeSettings settings;
  settings.scale_group = target.scale_group.value_or(0);
  settings.scale_of = target.scale_of.value_or(formats::ScaleOf::row);
  settings.activation = target.activation;
  if (target.block || target.rotate_group) {
    settings.rotate_group = target.rotate_group.value_or(0);
    return settings;
  }
  // Whether the format rotates at all: what it says of a weight that any group fits.
  const auto accepts = [&](const formats::WeightShape& one, std::uint32_t group) {
    formats::EncodeSettings tried;
    tried.rotate_group = group;
    return target.encoder().refusal(one, tried).empty();
  };
  constexpr std::uint64_t any_size = 4096;
  if (!accepts({LayerKind::linear, {any_size, any_size}, any_size, any_size}, 256)) return settings;
  for (const std::uint32_t group : {256u, 64u, 16u}) {
    settings.rotate_group = group;
    if (shape.columns % group == 0) return settings;
  }
  // int8_tensorwise can do without; for the others the last one is what they refuse.
  if (accepts(shape, 0)) settings.rotate_group = 0;
  return settings;
}

bool is_already(const ConvertTarget& target, const formats::Layer& layer) {
  if (target.block || layer.format != target.format) return false;
  if (target.rotate_group && *target.rotate_group != layer.rotate_group) return false;
  if (target.scale_group && *target.scale_group != layer.scale_group) return false;
  const TensorInfo* scale = layer.part("weight_scale");
  if (target.scale_of && scale) {
    const bool of_row = formats::value_count(*scale) == layer.rows;
    return of_row == (*target.scale_of == formats::ScaleOf::row);
  }
  return true;
}

}  // namespace parfait::convert
