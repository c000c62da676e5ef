// All findings of a checkpoint: what is the same for every format here, the rest from the format.

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include "base/floats.h"
#include "base/result.h"
#include "formats/format.h"

namespace parfait::formats {
namespace {

std::string dtype_list(std::span<const DType> dtypes) {
  std::string text;
  for (DType dtype : dtypes)
    text += fmt::format("{}{}", text.empty() ? "" : " or ", dtype_name(dtype));
  return text;
}

bool contains(std::span<const DType> dtypes, DType dtype) {
  return std::ranges::find(dtypes, dtype) != dtypes.end();
}

void check_part(const Layer& layer, const PartSpec& spec, FindingSink& sink) {
  const TensorInfo* tensor = layer.part(spec.role);
  if (!tensor) {
    if (spec.need == PartSpec::Need::required)
      sink.add(Severity::error, ErrorCode::part_missing, "", fmt::format("no {}", spec.role),
               fmt::format("{}.{}", layer.name, spec.suffixes.front()),
               fmt::format("{} needs a tensor that the file lacks", layer.format->name));
    return;
  }
  if (spec.need == PartSpec::Need::ignored) {
    sink.add(Severity::note, ErrorCode::part_ignored, tensor->name, "", "",
             fmt::format("{} has no use for this tensor; it was left unread", layer.format->name));
    return;
  }
  if (contains(spec.widened, tensor->dtype)) {
    sink.add(Severity::warning, ErrorCode::part_widened, tensor->name,
             std::string(dtype_name(tensor->dtype)), dtype_list(spec.dtypes),
             "stored in another dtype than the format's; it is read as float, where other tools "
             "refuse it");
  } else if (!contains(spec.dtypes, tensor->dtype)) {
    sink.add(Severity::error, ErrorCode::part_dtype, tensor->name,
             std::string(dtype_name(tensor->dtype)), dtype_list(spec.dtypes),
             fmt::format("the {} of {} has the wrong dtype", spec.role, layer.format->name));
  }
}

void check_kind(const Layer& layer, FindingSink& sink) {
  const auto& kinds = layer.format->kinds;
  if (std::ranges::find(kinds, layer.kind) != kinds.end()) return;
  std::string known;
  for (LayerKind kind : kinds)
    known += fmt::format("{}{}", known.empty() ? "" : ", ", layer_kind_name(kind));
  sink.add(
      Severity::error, ErrorCode::layer_kind, layer.part("weight")->name,
      fmt::format("{} ({} {})", layer_kind_name(layer.kind),
                  dtype_name(layer.part("weight")->dtype), shape_text(layer.part("weight")->shape)),
      known, fmt::format("{} cannot hold this kind of layer", layer.format->name));
}

// NaN, infinities and nothing but zeros in a tensor that belongs to no layer.
void check_plain_data(const TensorInfo& tensor, ByteSpan bytes, FindingSink& sink) {
  const bool floats = tensor.dtype == DType::f32 || tensor.dtype == DType::f16 ||
                      tensor.dtype == DType::bf16 || tensor.dtype == DType::f64;
  if (floats) {
    const std::uint64_t count = tensor.bytes / (dtype_bits(tensor.dtype) / 8);
    std::uint64_t bad = 0, first = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      if (std::isfinite(load_float(tensor.dtype, bytes.data(), i))) continue;
      if (bad++ == 0) first = i;
    }
    if (bad)
      sink.add(Severity::error, ErrorCode::data_not_finite, tensor.name,
               fmt::format("{} of {} values, the first at {}", bad, count, first), "none",
               "the tensor has NaN or infinite values");
  }
  if (floats && tensor.shape.size() >= 2 && !bytes.empty() &&
      std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; }))
    sink.add(Severity::warning, ErrorCode::data_all_zero, tensor.name,
             fmt::format("{} bytes", bytes.size()), "", "every byte of the tensor is zero");
}

// Reads a byte of each page: a check of values may stop at the first that settles it, but a part of
// the file that cannot be read must not be called sound.
void touch(ByteSpan bytes) {
  constexpr std::size_t page = 4096;
  unsigned sum = 0;
  for (std::size_t i = 0; i < bytes.size(); i += page) sum += std::to_integer<unsigned>(bytes[i]);
  volatile unsigned sink = sum;
  (void)sink;
}

class Checker {
 public:
  Checker(const Checkpoint& checkpoint, const CheckOptions& options)
      : checkpoint_(checkpoint), options_(options), findings_(checkpoint.findings) {}

  Result<std::vector<Finding>> check() {
    const bool deep = options_.depth == CheckDepth::data;
    if (deep) {
      for (const Layer& layer : checkpoint_.layers) progress_.total += layer.stored_bytes();
      for (const TensorInfo* tensor : checkpoint_.plain_tensors) progress_.total += tensor->bytes;
    }
    for (const Layer& layer : checkpoint_.layers) {
      FindingSink sink(findings_, layer.name, file_of(*layer.parts.front().tensor));
      for (const PartSpec& spec : layer.format->parts) check_part(layer, spec, sink);
      check_kind(layer, sink);
      if (!sink.has_error()) layer.format->check(layer, sink);
      if (!deep) continue;
      PARFAIT_CHECK_OK(advance(layer.name));
      // A layer whose header is wrong has no data that could be read as its format's.
      if (!sink.has_error() && !errors_before_.contains(std::string(layer.name)))
        PARFAIT_CHECK_OK(check_data(layer, sink));
      progress_.done += layer.stored_bytes();
    }
    if (deep) PARFAIT_CHECK_OK(check_plain());
    return std::move(findings_);
  }

 private:
  std::string_view file_of(const TensorInfo& tensor) const {
    const auto shards = checkpoint_.index->shards();
    return shards.size() > 1 ? std::string_view(shards[tensor.shard].reader->name())
                             : std::string_view();
  }

  Result<Done> advance(std::string_view what) {
    progress_.what = what;
    if (options_.progress && !options_.progress(progress_))
      return make_error(ErrorCode::cancelled, "the check was cancelled");
    return Done{};
  }

  Result<Done> check_data(const Layer& layer, FindingSink& sink) {
    PARFAIT_TRY(const LayerData data, read_layer(*checkpoint_.index, layer));
    for (const ByteSpan& part : data.data) touch(part);
    layer.format->check_data(data, sink);
    for (const Part& part : layer.parts) checkpoint_.index->drop(*part.tensor);
    return Done{};
  }

  Result<Done> check_plain() {
    for (const TensorInfo* tensor : checkpoint_.plain_tensors) {
      PARFAIT_CHECK_OK(advance(tensor->name));
      std::vector<std::byte> scratch;
      PARFAIT_TRY(const ByteSpan bytes, checkpoint_.index->read(*tensor, scratch));
      FindingSink sink(findings_, "", file_of(*tensor));
      touch(bytes);
      check_plain_data(*tensor, bytes, sink);
      checkpoint_.index->drop(*tensor);
      progress_.done += tensor->bytes;
    }
    return advance("");
  }

  static std::unordered_set<std::string> layers_with_errors(std::span<const Finding> findings) {
    std::unordered_set<std::string> names;
    for (const Finding& finding : findings)
      if (finding.severity == Severity::error) names.insert(finding.layer);
    return names;
  }

  const Checkpoint& checkpoint_;
  const CheckOptions& options_;
  std::vector<Finding> findings_;
  const std::unordered_set<std::string> errors_before_ = layers_with_errors(checkpoint_.findings);
  Progress progress_;
};

}  // namespace

Result<Done> require_sound(const Checkpoint& checkpoint, const Layer& layer) {
  std::vector<Finding> findings;
  FindingSink sink(findings, layer.name);
  for (const PartSpec& spec : layer.format->parts) check_part(layer, spec, sink);
  check_kind(layer, sink);
  if (!sink.has_error()) layer.format->check(layer, sink);
  for (const Finding& finding : checkpoint.findings)
    if (finding.severity == Severity::error && finding.layer == layer.name)
      findings.push_back(finding);
  for (const Finding& finding : findings)
    if (finding.severity == Severity::error)
      return make_error(ErrorCode::not_sound, "layer {} cannot be used: {}", printable(layer.name),
                        finding.line());
  return Done{};
}

Result<std::vector<Finding>> check_layers(const Checkpoint& checkpoint,
                                          const CheckOptions& options) {
  return Checker(checkpoint, options).check();
}

}  // namespace parfait::formats
