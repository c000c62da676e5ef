// From a recipe and a checkpoint's headers to a plan, with every problem found on the way.

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <unordered_map>
#include <unordered_set>

#include "base/result.h"
#include "base/text.h"
#include "convert/presets.h"
#include "convert/quantize_state.h"

namespace parfait {
namespace convert {
namespace {

constexpr std::size_t names_told = 5;

std::string some_names(const std::vector<std::string_view>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < names_told; ++i)
    text += (i ? ", " : "") + printable(names[i]);
  if (names.size() > names_told) text += fmt::format(" and {} more", names.size() - names_told);
  return text;
}

DType arithmetic_of(const formats::Layer& layer, EncodeLike like) {
  if (like == EncodeLike::f32) return DType::f32;
  const TensorInfo* weight = layer.part("weight");
  const DType dtype = weight ? weight->dtype : DType::f32;
  return dtype == DType::bf16 || dtype == DType::f16 ? dtype : DType::f32;
}

class Planner {
 public:
  Planner(const Checkpoint& checkpoint, const QuantizeOptions& options)
      : options_(options), state_(std::make_shared<QuantizeState>(checkpoint)) {}

  Result<QuantizePlan> plan() {
    PARFAIT_CHECK_OK(read_recipe());
    PARFAIT_CHECK_OK(read_calibration());
    for (const RecipeRule& rule : rules_)
      state_->rules.push_back({rule.line, rule.text, 0, 0, 0, 0});
    matched_.resize(rules_.size());
    for (const formats::Layer& layer : state_->checkpoint.state()->layers) decide(layer);
    for (const TensorInfo* tensor : state_->checkpoint.state()->plain_tensors) list(*tensor);
    find_unmatched();
    if (!quantized_already_.empty())
      problems_.push_back(fmt::format(
          "{} quantised already and would lose precision a second time: {}; keep them by a rule, "
          "or pass --requantize",
          quantized_already_.size() == 1 ? "1 layer is"
                                         : fmt::format("{} layers are", quantized_already_.size()),
          some_names(quantized_already_)));
    if (problems_.size() == 1) return Error{ErrorCode::recipe_layer, problems_[0]};
    if (!problems_.empty())
      return make_error(ErrorCode::recipe_layer, "{} problems with the recipe: {}",
                        problems_.size(), fmt::join(problems_, "; "));
    if (options_.target_bits || options_.target_bytes)
      PARFAIT_CHECK_OK(choose_formats(*state_, options_));
    else
      PARFAIT_CHECK_OK(lay_out(*state_));
    if (state_->encoded.empty())
      state_->warnings.push_back("no layer is quantised: the output would be a copy");
    sum_rules();
    return QuantizePlan(state_);
  }

 private:
  Result<Done> read_recipe() {
    std::string_view text = options_.recipe_text;
    state_->recipe = "recipe";
    if (options_.recipe == "auto" || options_.recipe.empty()) {
      if (options_.recipe == "auto") {
        const RecipePreset& preset = preset_for(*state_->checkpoint.state());
        text = preset.text;
        state_->recipe = preset.name;
      }
    } else if (const RecipePreset* preset = find_preset(options_.recipe)) {
      text = preset->text;
      state_->recipe = preset->name;
    } else {
      std::vector<std::string_view> names = {"auto"};
      for (const RecipePreset& one : recipe_presets()) names.push_back(one.name);
      const std::string nearest = nearest_name(options_.recipe, names);
      return make_error(ErrorCode::recipe_syntax,
                        "{} is no preset and no file; the presets are {}{}",
                        printable(options_.recipe), fmt::join(names, ", "),
                        nearest.empty() ? "" : "; did you mean " + nearest + "?");
    }
    PARFAIT_TRY(rules_, parse_recipe(text, options_.default_format));
    return Done{};
  }

  Result<Done> read_calibration() {
    state_->quality = options_.quality;
    if (options_.quality == Quality::best && options_.like == EncodeLike::source)
      return make_error(ErrorCode::plan_option,
                        "quality best follows no other tool's roundings; leave out one of the two");
    if (options_.calibration.empty()) return Done{};
    if (options_.quality != Quality::best)
      return make_error(ErrorCode::plan_option, "rows of inputs are for quality best");
    PARFAIT_TRY(Calibration calibration, Calibration::open(options_.calibration));
    state_->calibration_path = options_.calibration;
    state_->calibration = std::make_shared<const Calibration>(std::move(calibration));
    std::error_code ignored;
    state_->calibration_name = fmt::format(
        "{} {} {}", options_.calibration.string(),
        std::filesystem::file_size(options_.calibration, ignored),
        std::filesystem::last_write_time(options_.calibration, ignored).time_since_epoch().count());
    for (const std::string_view name : state_->calibration->tensors())
      if (!state_->checkpoint.state()->find(name))
        state_->warnings.push_back(
            fmt::format("the inputs of {} are for no layer of this file", printable(name)));
    return Done{};
  }

  void decide(const formats::Layer& layer) {
    QuantizeLayer entry;
    entry.name = layer.name;
    entry.kind = layer.kind;
    entry.rows = layer.rows;
    entry.columns = layer.columns;
    entry.from = entry.to = layer.format->name;
    entry.source_bytes = entry.bytes = layer.stored_bytes();
    entry.kept = true;
    entry.reason = "no rule is about it";
    std::string other_kind;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const RecipeRule& rule = rules_[i];
      if (!rule.matches(layer.name)) continue;
      ++matched_[i];
      if (entry.rule) continue;  // only counting
      if (rule.choice && rule.kind && *rule.kind != layer.kind) {
        other_kind = fmt::format("is of kind {0}: a rule with kind={0} takes it",
                                 layer_kind_name(layer.kind));
        continue;
      }
      entry.rule = rule.line;
      apply(layer, rule, entry);
    }
    if (entry.kept && !other_kind.empty()) entry.reason = other_kind;
    state_->layers.push_back(std::move(entry));
  }

  void apply(const formats::Layer& layer, const RecipeRule& rule, QuantizeLayer& entry) {
    entry.reason = "as the recipe says";
    if (!rule.choice) return;
    if (layer.rows * layer.columns < rule.least_weights) {
      entry.reason = fmt::format("has fewer than {} weights", rule.least_weights);
      return;
    }
    if (layer.format->folder != "plain" && options_.requantize == Requantize::refuse) {
      quantized_already_.push_back(layer.name);
      return;
    }
    formats::EncodeSettings settings = settings_for(*rule.choice, layer.columns);
    settings.arithmetic = arithmetic_of(layer, options_.like);
    auto target = LayerTarget::settle(layer, *rule.choice->format, settings);
    if (!target.ok()) {
      // Without the layer's name in front, which stands beside it.
      const std::string& message = target.error().message;
      const std::size_t behind = message.find(": ");
      entry.reason = behind == std::string::npos ? message : message.substr(behind + 2);
      return;
    }
    entry.kept = false;
    entry.to = rule.choice->format->name;
    entry.settings = settings_text(*rule.choice->format, settings);
    FormatChoice choice = *rule.choice;
    choice.settings.arithmetic = settings.arithmetic;
    state_->encoded.push_back({&layer, choice, std::move(*target), state_->layers.size(), {}});
  }

  // Weights of more than two dimensions that are no layers: kept, and told.
  void list(const TensorInfo& tensor) {
    if (!tensor.name.ends_with(".weight") || tensor.shape.size() < 3) return;
    QuantizeLayer entry;
    entry.name = tensor.name.substr(0, tensor.name.size() - 7);
    entry.kind = tensor.shape.size() == 3 ? LayerKind::experts : LayerKind::convolution;
    entry.rows = tensor.shape[0];
    entry.columns = 1;
    for (const std::uint64_t d : tensor.shape.subspan(1)) entry.columns *= d;
    entry.from = entry.to = dtype_name(tensor.dtype);
    entry.source_bytes = entry.bytes = tensor.bytes;
    entry.kept = true;
    entry.reason =
        fmt::format("has {} dimensions; linear layers of two are quantised", tensor.shape.size());
    state_->layers.push_back(std::move(entry));
  }

  void find_unmatched() {
    const bool own = state_->recipe == "recipe";
    std::vector<std::string_view> names;
    std::unordered_set<std::string_view> others;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      const RecipeRule& rule = rules_[i];
      if (matched_[i] || !own) continue;
      if (!rule.literal()) {
        state_->warnings.push_back(fmt::format("recipe, line {}: {} matches no layer", rule.line,
                                               printable(rule.pattern)));
        continue;
      }
      if (names.empty())
        for (const formats::Layer& layer : state_->checkpoint.state()->layers)
          names.push_back(layer.name);
      if (others.empty())
        for (const TensorInfo* tensor : state_->checkpoint.state()->plain_tensors) {
          others.insert(tensor->name);
          others.insert(tensor->name.substr(0, tensor->name.rfind('.')));
        }
      if (others.contains(rule.pattern)) {
        if (rule.choice)
          state_->warnings.push_back(
              fmt::format("recipe, line {}: {} is no linear layer, and is kept as it is", rule.line,
                          printable(rule.pattern)));
        continue;
      }
      const std::string nearest = nearest_name(rule.pattern, names);
      problems_.push_back(fmt::format(
          "recipe, line {}: there is no layer {}{}", rule.line, printable(rule.pattern),
          nearest.empty() ? "" : fmt::format("; the nearest is {}", printable(nearest))));
      if (problems_.size() == 20) return;
    }
  }

  void sum_rules() {
    for (std::size_t i = 0; i < rules_.size(); ++i) by_line_[rules_[i].line] = i;
    for (const QuantizeLayer& layer : state_->layers) {
      if (!layer.rule) continue;
      QuantizeRule& rule = state_->rules[by_line_[layer.rule]];
      ++rule.layers;
      rule.weights += layer.rows * layer.columns;
      rule.source_bytes += layer.source_bytes;
      rule.bytes += layer.bytes;
    }
    if (state_->recipe != "recipe") return;
    for (std::size_t i = 0; i < rules_.size(); ++i)
      if (matched_[i] && state_->rules[i].layers == 0)
        state_->warnings.push_back(
            fmt::format("recipe, line {}: all that {} matches belongs to rules above it, or is of "
                        "another kind",
                        rules_[i].line, printable(rules_[i].pattern)));
  }

  const QuantizeOptions& options_;
  std::shared_ptr<QuantizeState> state_;
  std::vector<RecipeRule> rules_;
  std::vector<std::uint64_t> matched_;  // layers that a rule's pattern fits, whoever takes them
  std::unordered_map<unsigned, std::size_t> by_line_;
  std::vector<std::string> problems_;
  std::vector<std::string_view> quantized_already_;
};

}  // namespace
}  // namespace convert

Result<QuantizePlan> plan_quantize(const CheckedCheckpoint& checkpoint,
                                   const QuantizeOptions& options) {
  return convert::Planner(checkpoint.checkpoint(), options).plan();
}

std::span<const QuantizeLayer> QuantizePlan::layers() const { return state_->layers; }
std::span<const QuantizeRule> QuantizePlan::rules() const { return state_->rules; }
std::span<const std::string> QuantizePlan::warnings() const { return state_->warnings; }
const std::string& QuantizePlan::recipe() const { return state_->recipe; }
std::uint64_t QuantizePlan::quantized() const { return state_->encoded.size(); }
std::uint64_t QuantizePlan::bytes() const { return state_->bytes; }
const Checkpoint& QuantizePlan::checkpoint() const { return state_->checkpoint; }

std::uint64_t QuantizePlan::source_bytes() const {
  std::uint64_t bytes = 0;
  for (const container::Shard& shard : state_->checkpoint.state()->index->shards())
    bytes += shard.reader->size();
  return bytes;
}

double QuantizePlan::bits_per_weight() const {
  double bytes = 0, weights = 0;
  for (const convert::EncodedLayer& layer : state_->encoded) {
    bytes += static_cast<double>(layer.target.bytes());
    weights += static_cast<double>(layer.layer->rows * layer.layer->columns);
  }
  return weights > 0 ? bytes * 8 / weights : 0;
}

}  // namespace parfait
