#include "convert/recipe.h"

#include <algorithm>
#include <charconv>

#include "base/hadamard.h"
#include "base/result.h"
#include "base/text.h"

namespace parfait::convert {
namespace {

constexpr std::string_view option_names[] = {"group",          "scale-group", "scale", "activation",
                                             "full-precision", "kind",        "min"};

// The words of a line, its comment cut off. A # begins a comment only after a space: names have it.
std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  constexpr std::string_view space = " \t\r";
  for (std::size_t begin = line.find_first_not_of(space); begin != std::string_view::npos;) {
    if (line[begin] == '#') break;
    const std::size_t end = std::min(line.find_first_of(space, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(space, end);
  }
  return words;
}

std::optional<std::uint64_t> whole_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

Error bad_line(unsigned line, std::string_view what) {
  return line ? make_error(ErrorCode::recipe_syntax, "recipe, line {}: {}", line, what)
              : make_error(ErrorCode::convert_option, "the format that was asked for: {}", what);
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> candidates) {
  const std::string nearest = nearest_name(word, candidates);
  return nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
}

std::vector<std::string_view> written_formats() {
  std::vector<std::string_view> names;
  for (const formats::Format* format : formats::all_formats())
    if (format->encoder) names.push_back(format->name);
  return names;
}

Error bad_value(unsigned line, std::string_view option, std::string_view expected,
                std::string_view got) {
  return bad_line(line, fmt::format("{} is {}, not \"{}\"", option, expected, printable(got)));
}

Result<Done> parse_group(std::string_view value, RecipeRule& rule) {
  if (value == "auto") return rule.choice->group.reset(), Done{};
  if (value == "none") return rule.choice->group = 0, Done{};
  const auto group = whole_number(value);
  if (!group || *group > 65536 || !is_rotation_group(*group))
    return bad_value(rule.line, "group", "auto, none, or 4, 16, 64, 256, ...", value);
  rule.choice->group = static_cast<std::uint32_t>(*group);
  return Done{};
}

Result<Done> parse_option(std::string_view word, RecipeRule& rule) {
  const std::size_t equals = word.find('=');
  const std::string_view option = word.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : word.substr(equals + 1);
  if (equals == std::string_view::npos ||
      std::ranges::find(option_names, option) == std::end(option_names)) {
    return bad_line(
        rule.line, fmt::format("\"{}\" is none of the options {}{}", printable(word),
                               fmt::join(option_names, "=, "), did_you_mean(option, option_names)));
  }
  const std::string_view format = rule.choice->format->name;
  formats::EncodeSettings& settings = rule.choice->settings;
  const auto only_for = [&](std::string_view wanted) {
    return bad_line(rule.line, fmt::format("{}= is for {}, not for {}", option, wanted, format));
  };
  if (option == "group") {
    if (!rotates(format) && value != "none" && value != "auto")
      return only_for("formats that are rotated");
    return parse_group(value, rule);
  }
  if (option == "scale-group") {
    const auto group = whole_number(value);
    if (!group || *group == 0 || *group > 65536)
      return bad_value(rule.line, option, "a number of columns", value);
    settings.scale_group = static_cast<std::uint32_t>(*group);
    return Done{};
  }
  if (option == "scale") {
    if (format != "int8_tensorwise") return only_for("int8_tensorwise");
    if (value != "row" && value != "tensor")
      return bad_value(rule.line, option, "row or tensor", value);
    settings.scale_of = value == "row" ? formats::ScaleOf::row : formats::ScaleOf::tensor;
    return Done{};
  }
  if (option == "activation") {
    if (format != "convrot_w4a4") return only_for("convrot_w4a4");
    if (value != "int4" && value != "int8")
      return bad_value(rule.line, option, "int4 or int8", value);
    settings.activation = value == "int4" ? Activation::int4 : Activation::int8;
    return Done{};
  }
  if (option == "full-precision") {
    if (value != "yes" && value != "no") return bad_value(rule.line, option, "yes or no", value);
    settings.full_precision = value == "yes";
    return Done{};
  }
  if (option == "kind") {
    if (value == "any") return rule.kind.reset(), Done{};
    for (const LayerKind kind : {LayerKind::linear, LayerKind::embedding, LayerKind::experts})
      if (value == layer_kind_name(kind)) return rule.kind = kind, Done{};
    return bad_value(rule.line, option, "linear, embedding, experts or any", value);
  }
  const auto least = whole_number(value);
  if (!least) return bad_value(rule.line, option, "a number of weights", value);
  rule.least_weights = *least;
  return Done{};
}

// words: a format and its options.
Result<Done> parse_choice(std::span<const std::string_view> words, RecipeRule& rule) {
  const std::vector<std::string_view> known = written_formats();
  if (std::ranges::find(known, words[0]) == known.end()) {
    if (formats::find_format(words[0]))
      return bad_line(rule.line, fmt::format("{} is read, but not written, by this program; it "
                                             "writes {}",
                                             words[0], fmt::join(known, ", ")));
    return bad_line(rule.line, fmt::format("\"{}\" is no format; there are keep, default, {}{}",
                                           printable(words[0]), fmt::join(known, ", "),
                                           did_you_mean(words[0], known)));
  }
  rule.choice.emplace();
  rule.choice->format = formats::find_format(words[0]);
  for (const std::string_view word : words.subspan(1)) PARFAIT_CHECK_OK(parse_option(word, rule));
  if (rule.choice->settings.scale_of == formats::ScaleOf::tensor && !rule.choice->group)
    rule.choice->group = 0;  // comfy-kitchen refuses a rotated weight with one scale
  return Done{};
}

}  // namespace

bool rotates(std::string_view format) {
  return format == "int8_tensorwise" || format == "convrot_w4a4" || format == "asym_w4a8_int8" ||
         format == "w6a8_int8";
}

bool RecipeRule::matches(std::string_view name) const {
  return glob_match(pattern, name) ||
         (pattern.starts_with("*.") && glob_match(std::string_view(pattern).substr(2), name));
}

bool RecipeRule::literal() const { return pattern.find_first_of("*?") == std::string::npos; }

Result<std::vector<RecipeRule>> parse_recipe(std::string_view text,
                                             std::string_view default_format) {
  const std::vector<std::string_view> defaults = words_of(default_format);
  if (defaults.empty()) return bad_line(0, "it is empty");
  RecipeRule probe;
  PARFAIT_CHECK_OK(parse_choice(defaults, probe));
  std::vector<RecipeRule> rules;
  unsigned number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::vector<std::string_view> words = words_of(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (words.empty()) continue;
    RecipeRule rule;
    rule.line = number;
    rule.pattern = words[0];
    rule.text = fmt::format("{}", fmt::join(words, " "));
    if (words.size() == 1)
      return bad_line(number, fmt::format("\"{}\" has no format behind it; give one, or keep",
                                          printable(words[0])));
    if (words[1] == "keep") {
      if (words.size() > 2)
        return bad_line(number,
                        fmt::format("keep takes no options, such as \"{}\"", printable(words[2])));
      rule.kind.reset();
      rule.least_weights = 0;
    } else {
      if (words[1] == "default") {
        words.erase(words.begin() + 1);
        words.insert(words.begin() + 1, defaults.begin(), defaults.end());
      }
      PARFAIT_CHECK_OK(parse_choice(std::span(words).subspan(1), rule));
      if (rule.literal()) rule.least_weights = 0;
    }
    rules.push_back(std::move(rule));
    if (rules.size() > 10'000) return bad_line(number, "more than 10000 rules");
  }
  if (rules.empty()) return make_error(ErrorCode::recipe_syntax, "the recipe has no rule");
  return rules;
}

formats::EncodeSettings settings_for(const FormatChoice& choice, std::uint64_t columns) {
  formats::EncodeSettings settings = choice.settings;
  if (!rotates(choice.format->name)) return settings;
  settings.rotate_group = choice.group.value_or(16);
  if (!choice.group)
    for (const std::uint32_t group : {64u, 256u})
      if (columns % group == 0) settings.rotate_group = group;
  return settings;
}

std::string settings_text(const formats::Format& format, const formats::EncodeSettings& settings) {
  std::string text;
  const auto add = [&](std::string_view words) {
    text += (text.empty() ? "" : ", ") + std::string(words);
  };
  if (settings.rotate_group) add(fmt::format("group {}", settings.rotate_group));
  if (rotates(format.name) && !settings.rotate_group) add("not rotated");
  if (settings.scale_group) add(fmt::format("scale group {}", settings.scale_group));
  if (settings.scale_of == formats::ScaleOf::tensor) add("one scale");
  if (settings.activation)
    add(*settings.activation == Activation::int8 ? "activation int8" : "activation int4");
  if (settings.full_precision) add("full precision");
  if (settings.arithmetic != DType::f32)
    add(fmt::format("arithmetic {}", dtype_name(settings.arithmetic)));
  return text;
}

}  // namespace parfait::convert
