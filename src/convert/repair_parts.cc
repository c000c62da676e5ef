// The tensors beside a weight: their names, dtypes and shapes, as ComfyUI's own files have them.

#include <algorithm>
#include <optional>

#include "base/result.h"
#include "convert/repair_mends.h"
#include "formats/common.h"

namespace parfait::convert {
namespace {

using Shape = std::vector<std::uint64_t>;
constexpr std::uint64_t max_scale_bytes = 64 << 20;  // of a tensor whose values are rewritten

struct Wanted {
  Shape shape;
  std::string_view why;
};
constexpr std::string_view one_value =
    "one value is a scalar; SGLang's int8 layers demand that rank, and every reader takes it";

std::optional<Wanted> block_scales(const formats::Layer& layer, std::uint64_t block) {
  const TensorInfo& weight = *layer.part("weight");
  if (weight.shape.size() != 2) return std::nullopt;
  const formats::BlockScales scales{weight.shape[0], layer.columns / block};
  return Wanted{{scales.stored_rows(), scales.stored_columns()},
                "block scales are declared as the matrix of their tiles"};
}

// The shape that a part of this layer has in ComfyUI's files, where there is only one.
std::optional<Wanted> shape_of(const formats::Layer& layer, std::string_view role,
                               std::uint64_t values) {
  const std::string_view format = layer.format->name;
  const bool by_row = values == layer.rows && layer.rows > 1;
  const bool matrix = layer.kind == LayerKind::linear || layer.kind == LayerKind::embedding;
  if (!matrix || layer.rows == 0) return std::nullopt;
  if (role == "bias") return Wanted{{layer.rows}, "a bias has one value for each output"};
  if (format == "int8_tensorwise" && role == "weight_scale") {
    if (by_row)
      return Wanted{{layer.rows, 1},
                    "scales by row are [N, 1] in ComfyUI's files; in an embedding it takes one "
                    "dimension for a scale of the whole tensor"};
    if (values == 1 && layer.rows > 1) return Wanted{{}, one_value};
  }
  if (format == "convrot_w4a4" && role == "weight_scale")
    return Wanted{{layer.rows}, "this format's scales are [N], which SGLang demands"};
  if (role == "weight_s_channel") return Wanted{{layer.rows}, "scales by channel are [N]"};
  if (role == "weight_codebook") return Wanted{{16}, "a codebook has 16 levels in one row"};
  if (role == "pre_quant_scale") return Wanted{{layer.columns}, "one value for each input"};
  if (format.starts_with("float8") && (role == "weight_scale" || role == "input_scale"))
    return Wanted{{}, one_value};
  if (format == "nvfp4" && (role == "weight_scale_2" || role == "input_scale"))
    return Wanted{{}, one_value};
  if (format == "nvfp4" && role == "weight_scale") return block_scales(layer, 16);
  if (format == "mxfp8" && role == "weight_scale") return block_scales(layer, 32);
  return std::nullopt;
}

class PartMender {
 public:
  PartMender(Draft& draft, const formats::Layer& layer) : draft_(draft), layer_(layer) {}

  Result<Done> mend(const formats::PartSpec& spec, const TensorInfo& tensor) {
    DraftTensor& draft = draft_.of(tensor);
    std::vector<std::string> reasons;
    std::string name(tensor.name);
    if (spec.need != formats::PartSpec::Need::ignored) rename(spec, tensor, name, reasons);
    if (std::ranges::find(spec.widened, tensor.dtype) != spec.widened.end()) {
      PARFAIT_CHECK_OK(widen(spec.dtypes.front(), tensor, draft, reasons));
    } else if (tensor.dtype == DType::u8 && spec.dtypes.front() == DType::f8_e4m3 &&
               spec.role != "weight") {
      draft.declared.dtype = DType::f8_e4m3;
      reasons.emplace_back("the bytes are fp8 scales, which SGLang takes under that name only");
    }
    const std::uint64_t values = formats::value_count(tensor);
    if (const auto wanted = shape_of(layer_, spec.role, values)) {
      std::uint64_t product = 1;
      for (const std::uint64_t d : wanted->shape) product *= d;
      if (product == values && wanted->shape != draft.declared.shape) {
        draft.declared.shape = wanted->shape;
        reasons.emplace_back(wanted->why);
      }
    }
    if (reasons.empty()) return Done{};
    std::string why;
    for (const std::string& reason : reasons) why += (why.empty() ? "" : "; ") + reason;
    draft_.note(tensor.shard, layer_.name, tensor.name, formats::tensor_text(tensor),
                fmt::format("{}{} {}", name == tensor.name ? "" : name + ": ",
                            dtype_name(draft.declared.dtype), shape_text(draft.declared.shape)),
                std::move(why));
    return Done{};
  }

  // The weight: the same bytes by another type's name.
  void retype(const Proof& proof) {
    const TensorInfo& weight = *layer_.part("weight");
    draft_.of(weight).declared.dtype = *proof.stored_as;
    draft_.note(weight.shard, layer_.name, weight.name, formats::tensor_text(weight),
                fmt::format("{} {}", dtype_name(*proof.stored_as), shape_text(weight.shape)),
                proof.why);
  }

 private:
  void rename(const formats::PartSpec& spec, const TensorInfo& tensor, std::string& name,
              std::vector<std::string>& reasons) {
    const std::string_view own = spec.suffixes.front();
    std::string wanted =
        layer_.name.empty() ? std::string(own) : fmt::format("{}.{}", layer_.name, own);
    if (wanted == tensor.name || !draft_.rename(tensor, wanted)) return;
    name = std::move(wanted);
    reasons.push_back(fmt::format("{} is this tensor's name today", own));
  }

  Result<Done> widen(DType dtype, const TensorInfo& tensor, DraftTensor& draft,
                     std::vector<std::string>& reasons) {
    if (tensor.bytes > max_scale_bytes) return Done{};
    std::vector<std::byte> scratch;
    PARFAIT_TRY(const ByteSpan bytes, draft_.index().read(tensor, scratch));
    const std::uint64_t values = formats::value_count(tensor);
    std::vector<std::byte> wide(values * dtype_bits(dtype) / 8);
    for (std::uint64_t i = 0; i < values; ++i)
      store_float(dtype, wide.data(), i, load_float(tensor.dtype, bytes.data(), i));
    draft.bytes = std::move(wide);
    draft.declared.dtype = dtype;
    reasons.push_back(fmt::format("readers take {} here; no value changes", dtype_name(dtype)));
    return Done{};
  }

  Draft& draft_;
  const formats::Layer& layer_;
};

}  // namespace

Result<Done> mend_parts(Draft& draft, const formats::Checkpoint& checkpoint, const Proofs& proofs) {
  for (const formats::Layer& layer : checkpoint.layers) {
    if (layer.format->folder == "plain") continue;
    PartMender mender(draft, layer);
    for (const formats::PartSpec& spec : layer.format->parts) {
      const TensorInfo* tensor = layer.part(spec.role);
      if (tensor && spec.role != "weight") PARFAIT_CHECK_OK(mender.mend(spec, *tensor));
    }
    const auto proof = proofs.find(std::string(layer.name));
    if (proof != proofs.end() && proof->second.stored_as) mender.retype(proof->second);
  }
  return Done{};
}

}  // namespace parfait::convert
