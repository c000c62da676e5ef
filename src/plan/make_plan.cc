#include "plan/make_plan.h"

#include <algorithm>
#include <map>

#include "base/result.h"
#include "formats/format.h"
#include "kernels/linear/widen.h"
#include "plan/split.h"

namespace parfait::plan {
namespace {

// The only list in which formats meet kernels. A format that is not here runs by decoding rows.
struct IntegerMethod {
  std::string_view format;
  kernels::WeightCode code;
  Method for_int8, for_int4;  // by the width of the activation
};
constexpr IntegerMethod integer_methods[] = {
    {"int8_tensorwise", kernels::WeightCode::int8, Method::int8, Method::int8},
    {"convrot_w4a4", kernels::WeightCode::int4, Method::w4a4_int8, Method::w4a4_int4},
    {"asym_w4a8_int8", kernels::WeightCode::w4a8, Method::w4a8, Method::w4a8},
    {"w6a8_int8", kernels::WeightCode::w6a8, Method::w6a8, Method::w6a8},
};

const IntegerMethod* integer_method_of(std::string_view format) {
  for (const IntegerMethod& method : integer_methods)
    if (method.format == format) return &method;
  return nullptr;
}

// The first kernel of a list for one of these instruction sets.
template <class Kernel>
const Kernel* choose(std::span<const Kernel> list, std::span<const Isa> isas) {
  for (const Kernel& kernel : list)
    if (std::ranges::find(isas, kernel.isa) != isas.end()) return &kernel;
  return nullptr;
}

std::string isa_list(std::span<const Isa> isas) {
  std::string text;
  for (Isa isa : isas) text += fmt::format("{}{}", text.empty() ? "" : ", ", isa_name(isa));
  return text;
}

// Names that stand beside each other in a fused or paired projection.
constexpr std::string_view siblings[] = {"q_proj", "k_proj", "v_proj", "to_q",  "to_k",
                                         "to_v",   "query",  "key",    "value", "q",
                                         "k",      "v",      "wq",     "wk",    "wv"};

class Planner {
 public:
  Planner(const CheckedCheckpoint& checked, const PlanOptions& options)
      : state_(std::make_shared<State>(checked)), checkpoint_(*checked.checkpoint().state()) {
    state_->options = options;
  }

  Result<std::shared_ptr<const State>> make() {
    PlanOptions& options = state_->options;
    if (options.ranks < 1 || options.ranks > 1024)
      return make_error(ErrorCode::plan_ranks, "{} ranks: 1 to 1024 can be planned", options.ranks);
    PARFAIT_CHECK_OK(settle_isa());
    if (options.tp_rules.empty()) options.tp_rules = builtin_tp_rules();
    PARFAIT_TRY(rules_, parse_tp_rules(options.tp_rules));
    state_->layers.reserve(checkpoint_.layers.size());
    for (const formats::Layer& layer : checkpoint_.layers) add(layer);
    if (!unsplittable_.empty() && options.unsplittable == Unsplittable::refuse)
      return make_error(ErrorCode::plan_split_refused,
                        "{} layers cannot be split over {} ranks: {}", unsplittable_.size(),
                        options.ranks, fmt::join(unsplittable_, "; "));
    for (const TensorInfo* tensor : checkpoint_.plain_tensors) state_->plain_bytes += tensor->bytes;
    for (std::uint32_t i = 0; i < state_->layers.size(); ++i)
      state_->by_name.emplace(state_->layers[i].name, i);
    note_activation_override();
    note_mixed_siblings();
    return std::shared_ptr<const State>(std::move(state_));
  }

 private:
  // The instruction sets that may be used: all of the machine's, or the one that was asked for.
  Result<Done> settle_isa() {
    const PlanOptions& options = state_->options;
    isas_ = options.machine;
    if (isas_.empty())
      return make_error(ErrorCode::plan_isa,
                        "the machine to plan for offers no instruction set, not even reference");
    if (!options.isa) return Done{};
    if (std::ranges::find(isas_, *options.isa) == isas_.end())
      return make_error(ErrorCode::plan_isa, "{} was asked for, but this machine offers only {}",
                        isa_name(*options.isa), isa_list(isas_));
    isas_ = isas_within(*options.isa);
    return Done{};
  }

  void add(const formats::Layer& layer) {
    LayerPlan plan;
    Chosen chosen;
    plan.name = layer.name;
    plan.format = layer.format->name;
    plan.kind = layer.kind;
    plan.rows = layer.rows;
    plan.columns = layer.columns;
    plan.stored_bytes = layer.stored_bytes();
    choose_method(layer, plan, chosen);
    plan.resident_bytes = resident_bytes(layer, chosen, layer.rows, layer.columns);
    split(layer, plan, chosen);
    state_->layers.push_back(std::move(plan));
    state_->chosen.push_back(chosen);
  }

  void choose_method(const formats::Layer& layer, LayerPlan& plan, Chosen& chosen) {
    switch (layer.kind) {
      case LayerKind::embedding:
        plan.method = Method::lookup;
        plan.kernel = "decode.rows";
        plan.reason = "an embedding: only the rows asked for are decoded";
        return;
      case LayerKind::convolution:
      case LayerKind::experts:
        plan.method = Method::decode_only;
        plan.kernel = "none";
        plan.reason = fmt::format("{}: can be decoded, is not run as a linear layer",
                                  layer_kind_name(layer.kind));
        return;
      case LayerKind::linear:
        break;
    }
    const IntegerMethod* method = integer_method_of(layer.format->name);
    std::string why_not = method ? no_integers_because(layer) : "";
    if (method && why_not.empty()) {
      chosen.stored = method->code;
      chosen.linear = choose(kernels::linear_kernels(code_to_hold(layer, method->code)), isas_);
      chosen.quantize = choose(kernels::quantize_kernels(), isas_);
      if (chosen.linear && chosen.quantize) return use_integers(layer, *method, plan, chosen);
      why_not = "no integer kernel for this machine: rows decoded";
    }
    chosen = {};
    chosen.decode = choose(kernels::float_kernels(), isas_);
    plan.method = Method::decode_rows;
    plan.kernel = chosen.decode ? chosen.decode->name : "none";
    plan.reason = method ? why_not : decode_reason(layer);
    if (layer.format->name == "bf16" && !layer.part("pre_quant_scale") && layer.columns > 0)
      chosen.bf16 = choose(kernels::bf16_kernels(), isas_);
    if (chosen.bf16)
      plan.reason += fmt::format("; an input in bf16 of {} rows or more by {}", least_bf16_rows,
                                 chosen.bf16->name);
  }

  // Why a layer of a format with an integer method runs by decoding all the same; empty: it
  // doesn't.
  static std::string no_integers_because(const formats::Layer& layer) {
    if (layer.full_precision)
      return "full_precision_matrix_mult in the marker: rows decoded, activation kept in float";
    if (layer.columns > kernels::max_columns)
      return fmt::format("{} columns could overflow int32 sums (limit {}): rows decoded",
                         layer.columns, kernels::max_columns);
    if (layer.part("weight_correction"))
      return "its correction is no multiple of the row's scale: rows decoded, activation kept in "
             "float";
    return {};
  }

  // Why codes with relative scales cannot stay as narrow as they are stored; empty: they can.
  static std::string widened_because(const formats::Layer& layer) {
    const TensorInfo* relative = layer.part("weight_s_rel");
    if (!relative) return {};
    if (relative->dtype == DType::f32) return "relative scales in F32";
    if (layer.scale_group % kernels::least_scale_group != 0)
      return fmt::format("scale groups of {}", layer.scale_group);
    return {};
  }
  static kernels::WeightCode code_to_hold(const formats::Layer& layer, kernels::WeightCode stored) {
    return widened_because(layer).empty() ? stored : kernels::WeightCode::int8;
  }

  void use_integers(const formats::Layer& layer, const IntegerMethod& method, LayerPlan& plan,
                    const Chosen& chosen) {
    plan.kernel = chosen.linear->name;
    Activation activation = layer.activation.value_or(Activation::int8);
    plan.reason = "exact int32 sums, activation int8 a row";
    if (method.for_int8 != method.for_int4) {
      const std::optional<Activation>& asked = state_->options.w4a4_activation;
      const auto text = [](Activation a) { return a == Activation::int4 ? "int4" : "int8"; };
      plan.reason =
          fmt::format("exact int32 sums, activation {} a row: {}", text(activation),
                      layer.activation_declared
                          ? "linear_dtype of the marker"
                          : "the marker names no linear_dtype, and this is ComfyUI's default");
      if (asked && *asked != activation) {
        plan.reason = fmt::format(
            "exact int32 sums, activation {} a row: asked for by option, where the file means {}",
            text(*asked), text(activation));
        ++overridden_;
      }
      activation = asked.value_or(activation);
    }
    plan.method = activation == Activation::int8 ? method.for_int8 : method.for_int4;
    if (layer.rotate_group) plan.reason += fmt::format("; ConvRot group {}", layer.rotate_group);
    if (const std::string why = widened_because(layer); !why.empty())
      plan.reason += fmt::format("; weights held as int8: {}", why);
  }

  static std::string decode_reason(const formats::Layer& layer) {
    if (layer.format->folder == "plain") return "plain weights, widened to float as needed";
    std::string reason =
        fmt::format("no integer kernel for {}: rows decoded as needed, activation kept in float",
                    layer.format->name);
    if (layer.part("input_scale")) reason += ", input_scale unused";
    if (layer.part("pre_quant_scale")) reason += ", pre_quant_scale applied";
    return reason;
  }

  // Bytes once loaded, for a part of the layer of that shape.
  static std::uint64_t resident_bytes(const formats::Layer& layer, const Chosen& chosen,
                                      std::uint64_t rows, std::uint64_t columns) {
    const TensorInfo* bias = layer.part("bias");
    const std::uint64_t bias_values = bias ? rows : 0;
    if (chosen.linear)
      return chosen.linear->packed_bytes(rows, columns, layer.scale_group) +
             kernels::table_bytes(chosen.linear->code) + 4 * rows + 4 * bias_values;
    return layer.format->size(layer, rows, columns) +
           (bias ? bias_values * dtype_bits(bias->dtype) / 8 : 0);
  }

  void split(const formats::Layer& layer, LayerPlan& plan, const Chosen& chosen) {
    const auto rule = std::ranges::find_if(
        rules_, [&](const TpRule& r) { return r.matches(layer.name, layer.rows, layer.columns); });
    Split result = split_layer(layer, rule == rules_.end() ? nullptr : &*rule, state_->options);
    if (result.refused)
      unsplittable_.push_back(fmt::format("{}: {}", printable(layer.name), result.reason));
    plan.split = result.axis;
    plan.split_reason = std::move(result.reason);
    plan.shares = std::move(result.shares);
    for (std::uint32_t rank = 0; rank < state_->options.ranks; ++rank) {
      std::uint64_t mine = 0;
      if (!plan.shares.empty())
        for (const Range& range : plan.shares[rank]) mine += range.size();
      const bool outputs = plan.split == SplitAxis::outputs,
                 inputs = plan.split == SplitAxis::inputs;
      plan.rank_bytes.push_back(outputs || inputs
                                    ? resident_bytes(layer, chosen, outputs ? mine : layer.rows,
                                                     inputs ? mine : layer.columns)
                                    : plan.resident_bytes);
    }
  }

  void note_activation_override() {
    if (overridden_ == 0) return;
    formats::FindingSink sink(state_->notes, "");
    sink.add(Severity::note, ErrorCode::plan_option, "", "", "",
             fmt::format("activation width set by option, against what the file means: {} layers",
                         overridden_));
  }

  // q, k and v stored apart may have unlike formats; each runs by its own.
  void note_mixed_siblings() {
    std::map<std::string_view, std::string_view>
        format_of;  // parent -> format of its first projection
    std::size_t mixed = 0;
    std::string example;
    for (const LayerPlan& layer : state_->layers) {
      const std::string_view name = layer.name;
      const std::size_t dot = name.rfind('.');
      if (dot == std::string_view::npos ||
          std::ranges::find(siblings, name.substr(dot + 1)) == std::end(siblings))
        continue;
      const auto [it, added] = format_of.try_emplace(name.substr(0, dot), layer.format);
      if (added || it->second == layer.format) continue;
      if (mixed++ == 0)
        example =
            fmt::format("{} is {}, beside {}", printable(layer.name), layer.format, it->second);
    }
    if (mixed == 0) return;
    formats::FindingSink sink(state_->notes, "");
    sink.add(Severity::note, ErrorCode::plan_option, "", example, "",
             fmt::format(
                 "projections with another format than their siblings: {}; each runs by its own, "
                 "which a tool that fuses them cannot do",
                 mixed));
  }

  std::shared_ptr<State> state_;
  const formats::Checkpoint& checkpoint_;
  std::vector<Isa> isas_;
  std::vector<TpRule> rules_;
  std::vector<std::string> unsplittable_;
  std::size_t overridden_ = 0;
};

template <class Kernel>
std::string kernel_names(std::span<const Kernel> list) {
  std::string names;
  for (const Kernel& kernel : list)
    names += fmt::format("{}{}", names.empty() ? "" : ", ", isa_name(kernel.isa));
  return names;
}

}  // namespace

Result<std::shared_ptr<const State>> make(const CheckedCheckpoint& checkpoint,
                                          const PlanOptions& options) {
  return Planner(checkpoint, options).make();
}

FormatMethods methods_of(std::string_view format) {
  const IntegerMethod* method = integer_method_of(format);
  if (!method)
    return {std::string(method_name(Method::decode_rows)), kernel_names(kernels::float_kernels())};
  std::string methods(method_name(method->for_int8));
  if (method->for_int4 != method->for_int8)
    methods = fmt::format("{}, {}", method_name(method->for_int4), methods);
  return {methods, kernel_names(kernels::linear_kernels(method->code))};
}

double tolerance_of(const formats::Format& format, Method method) {
  switch (method) {
    case Method::int8:
    case Method::w4a4_int8:
    case Method::w4a8:
    case Method::w6a8:
      return formats::find_format("int8_tensorwise")->tolerance.relative_l2;
    case Method::w4a4_int4:
      return format.tolerance.relative_l2;
    default:
      return 1e-5;  // the same weights in float: only the order of the sum differs
  }
}

}  // namespace parfait::plan
