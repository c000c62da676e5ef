// What a format is: eight questions, answered in this order under the same banners in every
// format's file. A format never includes a kernel; its decode is the reference maths and the oracle
// of tests.
//
//   Identify   mine, not mine, or mine but malformed and why
//   Parts      which tensors, of which dtypes, required or optional
//   Check      everything that is wrong, from the header alone; and from the data, if asked
//   Size       bytes stored for a shape
//   Split      which axes may be sharded, and where
//   Decode     rows to float
//   Encode     rows from float
//   Tolerance  what a kernel may differ by
//
// Everything here is immutable after detect(); use it from any thread.
#ifndef PARFAIT_FORMATS_FORMAT_H_
#define PARFAIT_FORMATS_FORMAT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "container/tensor_index.h"
#include "formats/encode.h"
#include "io/json.h"
#include "parfait/checkpoint.h"
#include "parfait/dtype.h"
#include "parfait/error.h"

namespace parfait::formats {

struct Format;
struct Layer;

// Where a layer's format was declared.
enum class Source {
  marker,        // <layer>.comfy_quant
  header_table,  // __metadata__._quantization_metadata
  quant_format,  // __metadata__.quant_format: one string for the whole file
  legacy,        // scaled_fp8 with scale_weight / scale_input
  structure,     // no declaration: the tensors prove the format
};
std::string_view source_name(Source source);

// A declaration of one layer, as read: known keys, flat or under "params", typed and in range.
// Keys that were absent are empty. An empty format means that the declaration did not name one.
struct Marker {
  std::string format;
  std::optional<bool> convrot, full_precision, per_row;
  std::optional<std::int64_t> convrot_groupsize, group_size, quant_group_size, num_experts;
  std::optional<std::string> linear_dtype;
  std::vector<std::string> other_keys;  // not known here, kept for a note
  Source source = Source::marker;
  std::uint32_t shard = 0;  // the file that declares it
  io::Json object;          // the whole object, to compare declarations and to print
};

// A tensor in its role in the layer.
struct Part {
  std::string_view role;  // the format's own name for it: "weight", "weight_scale", "bias"
  const TensorInfo* tensor = nullptr;
};

struct Layer {
  std::string_view name;
  const Format* format = nullptr;
  LayerKind kind = LayerKind::linear;
  Source source = Source::structure;

  // Logical shape: rows × columns after unpacking; of all experts where there are several.
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t experts = 1;

  // What the declaration settled.
  std::uint32_t rotate_group = 0;  // ConvRot group; 0: not rotated
  std::uint32_t scale_group = 0;   // columns that share a scale; 0: a row or the whole tensor does
  std::optional<Activation> activation;  // W4A4's linear_dtype, as declared or by default
  bool full_precision = false;           // full_precision_matrix_mult
  bool activation_declared = false;      // the marker itself says so

  std::vector<Part> parts;

  const TensorInfo* part(std::string_view role) const;
  std::uint64_t stored_bytes() const;
};

// What detection gathered for one layer name before a format is settled: the tensors
// <name>.<suffix>.
struct Evidence {
  std::string_view name;
  std::span<const Part> tensors;  // role = the suffix as it stands in the file
  const Marker* marker = nullptr;

  const TensorInfo* find(std::string_view suffix) const;
};

// Where findings go. Fills in layer and file for its caller.
class FindingSink {
 public:
  FindingSink(std::vector<Finding>& out, std::string_view layer, std::string_view file = {})
      : out_(out), layer_(layer), file_(file) {}
  // got / expected / tensor may be empty.
  void add(Severity severity, ErrorCode code, std::string_view tensor, std::string got,
           std::string expected, std::string message);
  bool has_error() const { return has_error_; }

 private:
  std::vector<Finding>& out_;
  std::string_view layer_, file_;
  bool has_error_ = false;
};

// The role of a tensor, the suffixes that spell it (the first is Comfy's), what it may be.
struct PartSpec {
  std::string_view role;
  std::vector<std::string_view> suffixes;
  std::vector<DType> dtypes;  // the format's own first
  enum class Need { required, optional, ignored } need = Need::required;
  std::vector<DType> widened = {};  // taken too, as float, with a warning: other tools refuse them
};

// A layer whose parts' bytes are at hand: data[i] belongs to layer->parts[i].
struct LayerData {
  const Layer* layer = nullptr;
  std::vector<ByteSpan> data;
  std::vector<std::vector<std::byte>> scratch;  // backs data where a reader had to copy

  ByteSpan part(std::string_view role) const;  // empty where there is none
};
// Reads all parts of a layer.
Result<LayerData> read_layer(const container::TensorIndex& index, const Layer& layer);

// Where an axis may be cut: at multiples of this many rows or columns. 0: nowhere, for the reason.
struct SplitRule {
  std::uint64_t rows = 1;
  std::uint64_t columns = 0;
  std::string why;  // what sets the column granularity: "ConvRot group 256, pack 64"
};

// What a kernel's y may differ by from the decoded float product, and from comfy-kitchen's eager
// op.
struct Tolerance {
  double relative_l2 = 0;  // of y against the product with the decoded weight in float
  double kitchen_f32 = 0;  // relative L2 of y against comfy-kitchen's eager linear, F32 activations
  double kitchen_f16 = 0;
  double kitchen_bf16 = 0;
};

struct Format {
  std::string_view name;         // Comfy's format string; "f32", "f16", "bf16" for plain layers
  std::string_view folder;       // src/formats/<folder>, docs/formats/<folder>.md
  std::string_view summary;      // one line for help texts and the README's matrix
  std::string_view weight_bits;  // bits a weight with its scales: "4", "8.5", "4.5"
  std::vector<LayerKind> kinds;  // what it may hold

  // Identify: whether these tensors, with no declaration, can only be this format.
  bool (*claims)(const Evidence&) = nullptr;
  // Identify: fills in the layer's shape, groups and switches from the marker (null where there is
  // none) and the parts, which are assigned already. Reports what it cannot settle.
  void (*settle)(const Marker*, Layer&, FindingSink&) = nullptr;
  // Parts
  std::vector<PartSpec> parts;
  // Check: dtypes and required parts are checked from `parts` for every format; this adds shapes
  // and the rest. check_data may take its time and reads every value.
  void (*check)(const Layer&, FindingSink&) = nullptr;
  void (*check_data)(const LayerData&, FindingSink&) = nullptr;
  // Size: bytes of a layer of this format and settings, without its bias, at another shape.
  std::uint64_t (*size)(const Layer&, std::uint64_t rows, std::uint64_t columns) = nullptr;
  // Split
  SplitRule (*split)(const Layer&) = nullptr;
  // Decode: rows × columns floats in the original basis.
  void (*decode)(const LayerData&, std::uint64_t first_row, std::uint64_t rows,
                 float* out) = nullptr;
  // Encode: encode.h. Null where this project writes no such layers.
  const Encoder* encoder = nullptr;
  // Tolerance
  Tolerance tolerance;
};

// The table, in the order of formats.inc. find_format takes Comfy's string.
std::span<const Format* const> all_formats();
const Format* find_format(std::string_view name);
std::string known_format_names();  // "int8_tensorwise, convrot_w4a4, ..." for messages

// An opened file, taken apart.
struct Checkpoint {
  container::TensorIndexPtr index;
  std::vector<Layer> layers;                     // in file order of their weights
  std::vector<const TensorInfo*> plain_tensors;  // belong to no layer
  std::vector<Finding> findings;                 // of the container and of detection

  const Layer* find(std::string_view name) const;  // linear in nothing: by hash
  std::unordered_map<std::string_view, std::uint32_t> by_name;
};

struct DetectOptions {
  Compat compat = Compat::none;
};
// Takes an index apart into layers. Every tensor ends up in a layer, in plain_tensors, or in a
// finding. Fails only where a marker's bytes cannot be read.
Result<std::shared_ptr<const Checkpoint>> detect(container::TensorIndexPtr index,
                                                 const DetectOptions& options = {});

// The bytes of a marker, as a Marker. Exposed for the fuzzer; detect() calls it.
std::optional<Marker> parse_marker(std::string_view bytes, FindingSink& sink,
                                   std::string_view tensor_name);

// All findings of a checkpoint: those it carries, and what each layer's format finds.
Result<std::vector<Finding>> check_layers(const Checkpoint& checkpoint,
                                          const CheckOptions& options);

// An error that names the first finding against a layer, if there is one: for callers that use a
// layer of a checkpoint which as a whole need not be sound.
Result<Done> require_sound(const Checkpoint& checkpoint, const Layer& layer);

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_FORMAT_H_
