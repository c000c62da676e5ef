// A checkpoint: one safetensors file, a shard set or a folder, opened and taken apart into layers.
//
// open() reads headers and the tiny marker tensors only; a 40 GB file takes milliseconds. A
// Checkpoint is a cheap handle on immutable shared state: copy it, use it from any thread. Layer,
// TensorInfo and every string_view and span handed out here live as long as some copy of their
// Checkpoint.
#ifndef PARFAIT_CHECKPOINT_H_
#define PARFAIT_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "parfait/dtype.h"
#include "parfait/error.h"

namespace parfait {

namespace formats {
struct Checkpoint;
struct Layer;
}  // namespace formats

enum class Io { mapped, pread };
enum class Strictness { strict, lenient };
// What a declaration means where tools disagree. none: a disagreement is a finding. comfyui: the
// file is read as ComfyUI reads it (the header table wins over marker tensors).
enum class Compat { none, comfyui };

struct OpenOptions {
  Io io = Io::mapped;
  Strictness strictness = Strictness::strict;  // lenient: trailing bytes are a warning
  Compat compat = Compat::none;
  std::uint64_t max_header_bytes = 100'000'000;  // of one file, as the safetensors reference reader
};

// One tensor as its header declares it.
struct TensorInfo {
  std::string_view name;
  DType dtype = DType::u8;
  std::span<const std::uint64_t> shape;
  std::uint64_t offset = 0;  // of its first byte in its file
  std::uint64_t bytes = 0;
  std::uint32_t shard = 0;  // which of the checkpoint's files
};
std::string shape_text(std::span<const std::uint64_t> shape);  // "[21504, 5376]"

struct ShardInfo {
  std::string path;
  std::uint64_t file_bytes = 0;
  std::uint64_t header_bytes = 0;
  std::uint64_t tensors = 0;
  std::span<const std::pair<std::string, std::string>> metadata;  // __metadata__, in file order
};

// The integer width to which W4A4 layers quantise their input.
enum class Activation { int4, int8 };

enum class LayerKind { linear, embedding, convolution, experts };
std::string_view layer_kind_name(LayerKind kind);

// One layer: a weight with its companions under one format. A view into its Checkpoint.
class Layer {
 public:
  explicit Layer(const formats::Layer* layer) : layer_(layer) {}

  std::string_view name() const;    // "blocks.0.attn.qkv_proj"
  std::string_view format() const;  // "convrot_w4a4"
  LayerKind kind() const;
  std::uint64_t rows() const;          // N, output features; of all experts where there are several
  std::uint64_t columns() const;       // K, input features, unpacked
  std::uint64_t rotate_group() const;  // ConvRot group, 0 where the weight is not rotated
  std::uint64_t scale_group()
      const;  // columns that share a scale; 0 where a row or the tensor does
  std::uint64_t stored_bytes() const;  // of all parts
  double bits_per_weight() const;
  struct Part {
    std::string_view role;  // "weight", "weight_scale", "bias"
    TensorInfo tensor;
  };
  std::vector<Part> parts() const;
  std::string_view source() const;  // where the format was declared: "marker", "header table", ...
  std::string line() const;         // one line that fits a terminal

 private:
  const formats::Layer* layer_;
};

class Checkpoint {
 public:
  explicit Checkpoint(std::shared_ptr<const formats::Checkpoint> state)
      : state_(std::move(state)) {}

  std::size_t size() const;  // layers
  Layer operator[](std::size_t i) const;
  std::optional<Layer> find(std::string_view name) const;

  class Iterator {
   public:
    Iterator(const Checkpoint* checkpoint, std::size_t i) : checkpoint_(checkpoint), i_(i) {}
    Layer operator*() const { return (*checkpoint_)[i_]; }
    Iterator& operator++() { return ++i_, *this; }
    bool operator==(const Iterator& other) const { return i_ == other.i_; }

   private:
    const Checkpoint* checkpoint_;
    std::size_t i_;
  };
  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, size()}; }

  std::vector<TensorInfo> tensors() const;  // every tensor of every file, in file order
  std::vector<TensorInfo> plain_tensors()
      const;  // those that belong to no layer: norms, tables, ...
  std::vector<ShardInfo> shards() const;
  // What opening and detection found already. check() returns these and its own.
  std::span<const Finding> findings() const;

  const std::shared_ptr<const formats::Checkpoint>& state() const { return state_; }

 private:
  std::shared_ptr<const formats::Checkpoint> state_;
};

// Opens a file, a *.safetensors.index.json, or a folder that holds either.
Result<Checkpoint> open(const std::filesystem::path& path, const OpenOptions& options = {});

// A tensor's bytes, as they are in the file.
Result<std::vector<std::byte>> read_tensor(const Checkpoint& checkpoint, const TensorInfo& tensor);

// The layers whose names match a pattern (* for any run of characters, ? for one), in file order.
// Where none does that is an error, which offers the nearest name.
Result<std::vector<Layer>> match_layers(const Checkpoint& checkpoint, std::string_view pattern);

struct Progress {
  std::uint64_t done = 0;
  std::uint64_t total = 0;
  std::string_view what;  // the layer at hand
};
// Called now and then from the calling thread; false cancels.
using ProgressCallback = std::function<bool(const Progress&)>;

enum class CheckDepth {
  headers,  // reads no weight
  data,     // also reads every tensor once: NaN, zero scales, codes out of range
};
struct CheckOptions {
  CheckDepth depth = CheckDepth::headers;
  ProgressCallback progress;
};

// Proof that a checkpoint has no finding of severity error. Only check() makes one.
class CheckedCheckpoint {
 public:
  const Checkpoint& checkpoint() const { return checkpoint_; }

 private:
  friend struct CheckAccess;
  explicit CheckedCheckpoint(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}
  Checkpoint checkpoint_;
};

struct CheckReport {
  std::vector<Finding> findings;             // all of them, never only the first
  std::optional<CheckedCheckpoint> checked;  // there exactly if no finding is an error
  bool sound() const { return checked.has_value(); }
};
// Fails only where reading fails or the caller cancels; what is wrong with the file is in the
// report.
Result<CheckReport> check(const Checkpoint& checkpoint, const CheckOptions& options = {});

// Decodes rows [first_row, first_row + rows) of a layer to float in the original basis (a rotated
// weight is rotated back): out holds rows × columns() values, row-major. The reference maths.
Result<Done> decode(const Checkpoint& checkpoint, const Layer& layer, std::uint64_t first_row,
                    std::uint64_t rows, std::span<float> out);

// One row of the format table, from which help texts and the support matrix are made.
struct FormatInfo {
  std::string_view name;
  std::string_view summary;
  std::string_view weight_bits;  // "4", "8.5" - bits a weight, scales included
  std::string_view kinds;        // "linear, embedding"
  std::string_view method;       // how a linear layer of it runs
  std::string_view kernels;      // variants, fastest first
  std::string_view folder;       // docs/formats/<folder>.md
};
std::vector<FormatInfo> formats_table();

// Layers in which two checkpoints differ: by format, shape, scales or bytes.
struct LayerDifference {
  std::string layer;
  std::string what;  // "only in a", "format", "shape", "scales", "bytes", ...
  std::string a, b;
};
Result<std::vector<LayerDifference>> diff(const Checkpoint& a, const Checkpoint& b,
                                          const ProgressCallback& progress = {});

}  // namespace parfait

#endif  // PARFAIT_CHECKPOINT_H_
