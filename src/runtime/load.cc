#include <algorithm>

#include "base/checked.h"
#include "base/floats.h"
#include "base/result.h"
#include "base/text.h"
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
      pack(data, loaded);
      for (const formats::Part& part : layer.parts) checkpoint_.index->drop(*part.tensor);
    } else {
      loaded.bias = to_floats(data, "bias");
      loaded.data = std::move(data);
    }
    return loaded;
  }

  void pack(const formats::LayerData& data, LoadedLayer& loaded) {
    const formats::Layer& layer = *data.layer;
    const kernels::LinearKernel& kernel = *loaded.kernels.linear;
    kernels::PackedWeight& packed = loaded.packed;
    packed.rows = layer.rows;
    packed.columns = layer.columns;
    packed.rotate_group = layer.rotate_group;
    packed.scales = to_floats(data, "weight_scale");
    if (packed.scales.size() == 1) packed.scales.resize(layer.rows, packed.scales[0]);
    packed.bias = to_floats(data, "bias");
    packed.codes = kernels::AlignedBytes(kernel.packed_bytes(layer.rows, layer.columns));
    const std::byte* codes = data.part("weight").data();
    const Int8Weight int8{codes, nullptr, layer.rows, layer.columns, 0};
    const Int4Weight int4{codes, nullptr, layer.rows, layer.columns};
    const std::uint64_t piece = round_up(256, kernel.row_tile);
    pool_.run(ceil_div(layer.rows, piece), [&](std::uint64_t p, unsigned) {
      const std::uint64_t n0 = p * piece, n1 = std::min(n0 + piece, layer.rows);
      if (kernel.pack_int8)
        kernel.pack_int8(int8, n0, n1, packed.codes.data());
      else
        kernel.pack_int4(int4, n0, n1, packed.codes.data());
    });
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

const LoadedLayer* Model::find(std::string_view name) const {
  const auto it = by_name.find(name);
  return it == by_name.end() ? nullptr : &layers[it->second];
}

Result<std::shared_ptr<const Model>> load(const Plan& plan, const LoadOptions& options) {
  return Loader(plan, options).load();
}

}  // namespace parfait::runtime
