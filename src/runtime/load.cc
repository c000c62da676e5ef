#include <algorithm>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/floats.h"
#include "base/result.h"
#include "base/text.h"
#include "kernels/linear/widen.h"
#include "runtime/model.h"

namespace parfait::runtime {
namespace {

std::vector<float> to_floats(const formats::LayerData& data, std::string_view role) {
  const TensorInfo* tensor = data.layer->part(role);
  if (!tensor) return {};
  const ByteSpan bytes = data.part(role);
  std::vector<float> values(bytes.size() / (dtype_bits(tensor->dtype) / 8));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = load_float(tensor->dtype, bytes.data(), i);
  return values;
}

std::vector<Isa> isas_of(const plan::Chosen& chosen) {
  std::vector<Isa> isas;
  if (chosen.linear) isas.push_back(chosen.linear->isa);
  if (chosen.quantize) isas.push_back(chosen.quantize->isa);
  if (chosen.decode) isas.push_back(chosen.decode->isa);
  return isas;
}

// Codes that are held as others than the file's are widened so many rows at a time, by thread.
constexpr std::uint64_t widened_rows = 256;

class Loader {
 public:
  Loader(const Plan& plan, const LoadOptions& options)
      : state_(*plan.state()),
        checkpoint_(*state_.checked.checkpoint().state()),
        options_(options),
        pool_(options.threads),
        model_(std::make_shared<Model>(plan)) {}

  Result<std::shared_ptr<const Model>> load() {
    PARFAIT_TRY(const std::vector<std::uint32_t> wanted, wanted_layers());
    PARFAIT_CHECK_OK(check_machine(wanted));
    for (std::uint32_t i : wanted) progress_.total += state_.layers[i].stored_bytes;
    model_->layers.reserve(wanted.size());
    for (std::uint32_t i : wanted) {
      progress_.what = state_.layers[i].name;
      if (options_.progress && !options_.progress(progress_))
        return make_error(ErrorCode::cancelled, "loading was cancelled at layer {}",
                          printable(state_.layers[i].name));
      PARFAIT_TRY(LoadedLayer layer, load_layer(i));
      model_->layers.push_back(std::move(layer));
      progress_.done += state_.layers[i].stored_bytes;
    }
    for (std::uint32_t i = 0; i < model_->layers.size(); ++i)
      model_->by_name.emplace(model_->layers[i].layer->name, i);
    if (options_.progress) options_.progress(progress_);
    return std::shared_ptr<const Model>(std::move(model_));
  }

 private:
  // Indices into the plan, in file order, which is the plan's own order.
  Result<std::vector<std::uint32_t>> wanted_layers() const {
    std::vector<std::uint32_t> wanted;
    if (options_.layers.empty()) {
      for (std::uint32_t i = 0; i < state_.layers.size(); ++i) wanted.push_back(i);
      return wanted;
    }
    for (const std::string& name : options_.layers) {
      const auto it = state_.by_name.find(name);
      if (it == state_.by_name.end())
        return make_error(ErrorCode::layer_not_found, "no layer is named {}{}", printable(name),
                          suggestion(name));
      wanted.push_back(it->second);
    }
    std::ranges::sort(wanted);
    wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
    return wanted;
  }

  std::string suggestion(const std::string& name) const {
    std::vector<std::string_view> names;
    for (const LayerPlan& layer : state_.layers) names.push_back(layer.name);
    const std::string nearest = nearest_name(name, names);
    return nearest.empty() ? "" : fmt::format("; the nearest is {}", nearest);
  }

  Result<Done> check_machine(std::span<const std::uint32_t> wanted) const {
    const std::vector<Isa> here = machine_isas();
    for (std::uint32_t i : wanted) {
      const LayerPlan& layer = state_.layers[i];
      for (Isa isa : isas_of(state_.chosen[i]))
        if (std::ranges::find(here, isa) == here.end())
          return make_error(ErrorCode::plan_isa,
                            "the plan runs layer {} with {}, but this machine does not offer {}",
                            printable(layer.name), layer.kernel, isa_name(isa));
    }
    return Done{};
  }

  Result<LoadedLayer> load_layer(std::uint32_t i) {
    const formats::Layer& layer = checkpoint_.layers[i];
    LoadedLayer loaded;
    loaded.layer = &layer;
    loaded.plan = &state_.layers[i];
    loaded.kernels = state_.chosen[i];
    PARFAIT_TRY(formats::LayerData data, formats::read_layer(*checkpoint_.index, layer));
    loaded.pre_quant_scale = to_floats(data, "pre_quant_scale");
    if (loaded.kernels.linear) {
      PARFAIT_CHECK_OK(pack(data, loaded));
      for (const formats::Part& part : layer.parts) checkpoint_.index->drop(*part.tensor);
    } else {
      loaded.bias = to_floats(data, "bias");
      loaded.data = std::move(data);
    }
    return loaded;
  }

  Result<Done> pack(const formats::LayerData& data, LoadedLayer& loaded) {
    const formats::Layer& layer = *data.layer;
    const kernels::LinearKernel& kernel = *loaded.kernels.linear;
    const kernels::WeightCode stored = loaded.kernels.stored;
    kernels::PackedWeight& packed = loaded.packed;
    packed.rows = layer.rows;
    packed.columns = layer.columns;
    packed.rotate_group = layer.rotate_group;
    packed.scale_group = layer.scale_group;
    packed.scales =
        to_floats(data, kernels::level_count(stored) ? "weight_s_channel" : "weight_scale");
    if (packed.scales.size() == 1) packed.scales.resize(layer.rows, packed.scales[0]);
    packed.bias = to_floats(data, "bias");
    packed.codes =
        kernels::AlignedBytes(kernel.packed_bytes(layer.rows, layer.columns, layer.scale_group));
    PARFAIT_TRY(const std::vector<float> levels, levels_of(data, stored));
    if (kernels::level_count(kernel.code))
      packed.tables = kernels::widening_tables(levels, kernel.table_bits);
    const kernels::WeightView view{data.part("weight").data(), data.part("weight_s_rel").data(),
                                   layer.rows, layer.columns, layer.scale_group};
    const std::uint64_t piece = round_up(widened_rows, kernel.row_tile);
    std::vector<std::vector<std::byte>> widened(kernel.code == stored ? 0 : pool_.count());
    for (auto& rows : widened) rows.resize(piece * layer.columns);
    pool_.run(ceil_div(layer.rows, piece), [&](std::uint64_t p, unsigned thread) {
      const std::uint64_t n0 = p * piece, n1 = std::min(n0 + piece, layer.rows);
      if (kernel.code == stored) {
        kernel.pack(view, n0, n1, packed.codes.data());
      } else {
        std::byte* rows = widened[thread].data();
        widen_rows(data, stored, levels, n0, n1, rows);
        // Panels of int8 follow each other, so these rows are packed as a weight of their own.
        kernel.pack({rows, nullptr, n1 - n0, layer.columns, 0}, 0, n1 - n0,
                    packed.codes.data() + kernel.packed_bytes(n0, layer.columns, 0));
      }
      if (!levels.empty()) poison_rows(data, n0, n1, packed);
    });
    return Done{};
  }

  // The levels that codes with relative scales stand for; none for other codes.
  static Result<std::vector<float>> levels_of(const formats::LayerData& data,
                                              kernels::WeightCode stored) {
    std::vector<float> levels = to_floats(data, "weight_codebook");
    for (std::size_t i = 0; i < levels.size(); ++i)
      if (!std::isfinite(levels[i]))
        return make_error(ErrorCode::data_not_finite, "layer {}: weight_codebook[{}] is {}",
                          printable(data.layer->name), i, levels[i]);
    const std::uint64_t count = kernels::level_count(stored);
    if (levels.empty())
      for (std::uint64_t code = 0; code < count; ++code)
        levels.push_back(static_cast<float>(code) - static_cast<float>(count / 2));
    return levels;
  }

  // Rows of codes with relative scales, as int8.
  static void widen_rows(const formats::LayerData& data, kernels::WeightCode stored,
                         std::span<const float> levels, std::uint64_t n0, std::uint64_t n1,
                         std::byte* out) {
    const formats::Layer& layer = *data.layer;
    const std::uint64_t columns = layer.columns, groups = columns / layer.scale_group;
    const DType dtype = relative_dtype(layer);
    const std::byte* relative = data.part("weight_s_rel").data();
    for (std::uint64_t n = n0; n < n1; ++n) {
      const std::byte* row = data.part("weight").data() + n * kernels::row_bytes(stored, columns);
      for (std::uint64_t k = 0; k < columns; ++k) {
        const float scale = load_float(dtype, relative, n * groups + k / layer.scale_group);
        const float level = levels[kernels::weight_code(stored, row, columns, k)];
        *out++ = static_cast<std::byte>(kernels::widened(level, scale));
      }
    }
  }

  static DType relative_dtype(const formats::Layer& layer) {
    const DType dtype = layer.part("weight_s_rel")->dtype;
    return dtype == DType::u8 ? DType::f8_e4m3 : dtype;
  }

  // A row with a relative scale of NaN has no values: its outputs are NaN.
  static void poison_rows(const formats::LayerData& data, std::uint64_t n0, std::uint64_t n1,
                          kernels::PackedWeight& packed) {
    const formats::Layer& layer = *data.layer;
    const std::uint64_t groups = layer.columns / layer.scale_group;
    const DType dtype = relative_dtype(layer);
    const std::byte* relative = data.part("weight_s_rel").data();
    for (std::uint64_t n = n0; n < n1; ++n)
      for (std::uint64_t i = n * groups; i < (n + 1) * groups; ++i)
        if (dtype == DType::f8_e4m3 ? (relative[i] & std::byte{0x7f}) == std::byte{0x7f}
                                    : std::isnan(load_float(dtype, relative, i)))
          packed.scales[n] = std::numeric_limits<float>::quiet_NaN();
  }

  const plan::State& state_;
  const formats::Checkpoint& checkpoint_;
  const LoadOptions& options_;
  Threads pool_;
  std::shared_ptr<Model> model_;
  Progress progress_;
};

}  // namespace

std::uint64_t LoadedLayer::resident_bytes() const {
  if (kernels.linear) return packed.bytes();
  // The marker was read once; bias and pre_quant_scale are counted as they lie in the file.
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < data.data.size(); ++i)
    if (layer->parts[i].role != "comfy_quant") bytes += data.data[i].size();
  return bytes;
}

std::uint64_t reading_bytes(const plan::State& plan, std::uint32_t layer, unsigned threads) {
  const plan::Chosen& chosen = plan.chosen[layer];
  if (!chosen.linear) return 0;  // kept as it is read
  const LayerPlan& of = plan.layers[layer];
  const std::uint64_t widened =
      chosen.linear->code == chosen.stored
          ? 0
          : threads * round_up(widened_rows, chosen.linear->row_tile) * of.columns;
  return of.stored_bytes + widened;
}

const LoadedLayer* Model::find(std::string_view name) const {
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : &layers[it->second];
}

Result<std::shared_ptr<const Model>> load(const Plan& plan, const LoadOptions& options) {
  return Loader(plan, options).load();
}

}  // namespace parfait::runtime
