// The other operations of a transformer and of an image decoder, one pass each, on matrices that
// somebody else owns.
//
// Activations are F32, F16 or BF16; every operation computes in float and rounds once, to y's type.
// Inputs and output may differ in type. An output may be the same memory as an input where the
// comment says "in place"; other overlaps are an error that is not looked for. Vectors of
// parameters are float. Every call checks shapes and returns an error that names what it found and
// what it expected; no call reads a value to decide what to do, and NaN and infinities pass
// through as IEEE arithmetic has it.
//
// An Ops object holds threads and scratch, and belongs to one caller at a time. Results never
// depend on the number of threads.
#ifndef PARFAIT_OPS_H_
#define PARFAIT_OPS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "parfait/error.h"
#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait {

namespace runtime {
struct Ops;
struct DenseWeight;
struct ConvWeight;
}  // namespace runtime

// n = x / sqrt(mean(x²) + epsilon) for rms_norm, n = (x − mean) / sqrt(variance + epsilon) for
// layer_norm, over the columns of a row; then y = (n · weight + bias) · (1 + scale) + shift. An
// empty vector is left out: weight as 1, the others as 0. Each has as many values as x has columns.
// With segment not 0, each run of so many columns (a head) is normalised by itself, and the vectors
// have as many values as a segment.
struct NormOptions {
  float epsilon = 1e-6f;
  std::uint64_t segment = 0;
  std::span<const float> weight = {}, bias = {}, scale = {}, shift = {};
};

// Which columns of a head turn together: 2i and 2i + 1, or i and i + head_size/2.
enum class RopePairs { adjacent, halves };
struct RopeOptions {
  std::uint64_t head_size = 128;
  RopePairs pairs = RopePairs::adjacent;
};

enum class Gelu { erf, tanh };

enum class AttentionMask {
  full,    // every query sees every key
  causal,  // query i sees keys 0 .. i + (keys − queries)
};
struct AttentionOptions {
  std::uint64_t heads = 1;
  std::uint64_t kv_heads = 0;  // 0: as many as heads; divides heads, query head h uses h·kv/heads
  float scale = 0;             // of q·k; 0: 1 / sqrt(head size)
  AttentionMask mask = AttentionMask::full;
  std::span<const std::uint8_t> keys =
      {};  // one a key, 0: padding, seen by nobody; empty: all are seen
};

struct GroupNormOptions {
  std::uint64_t groups = 32;  // divides the channels
  float epsilon = 1e-6f;
  std::span<const float> weight = {}, bias = {};  // one a channel, or empty
  bool silu = false;                              // y = silu(normalised)
};

// An image as a matrix: height · width rows, one column a channel ("channels last").
struct ImageSize {
  std::uint64_t height = 0, width = 0;
};
struct ConvOptions {
  std::uint64_t kernel_height = 3, kernel_width = 3, stride = 1;
  std::uint64_t pad_top = 1, pad_left = 1, pad_bottom = 1, pad_right = 1;
};

// A weight prepared for dense products, with its bias. Immutable; any number of Ops may share it.
class DenseWeight {
 public:
  explicit DenseWeight(std::shared_ptr<const runtime::DenseWeight> state)
      : state_(std::move(state)) {}
  const std::shared_ptr<const runtime::DenseWeight>& state() const { return state_; }

 private:
  std::shared_ptr<const runtime::DenseWeight> state_;
};
class ConvWeight {
 public:
  explicit ConvWeight(std::shared_ptr<const runtime::ConvWeight> state)
      : state_(std::move(state)) {}
  const std::shared_ptr<const runtime::ConvWeight>& state() const { return state_; }

 private:
  std::shared_ptr<const runtime::ConvWeight> state_;
};

class Ops {
 public:
  // threads = 0: as many as the machine has. isa unset: the best of the machine's.
  static Result<Ops> make(unsigned threads = 0, std::optional<Isa> isa = {});
  ~Ops();
  Ops(Ops&&) noexcept;
  Ops& operator=(Ops&&) noexcept;

  // --- Rows: x and y are [M, D] ---
  Result<Done> rms_norm(ConstMatrix x, const NormOptions& options, Matrix y);    // in place
  Result<Done> layer_norm(ConstMatrix x, const NormOptions& options, Matrix y);  // in place
  // x [M, heads · head_size]; cos and sin [M, head_size / 2]. For a pair (a, b) and its angle:
  // y = (a·cos − b·sin, b·cos + a·sin). In place.
  Result<Done> rope(ConstMatrix x, ConstMatrix cos, ConstMatrix sin, const RopeOptions& options,
                    Matrix y);
  Result<Done> silu(ConstMatrix x, Matrix y);                          // x / (1 + e^−x), in place
  Result<Done> gelu(ConstMatrix x, Gelu kind, Matrix y);               // in place
  Result<Done> silu_gate(ConstMatrix gate, ConstMatrix up, Matrix y);  // silu(gate) · up, in place
  Result<Done> gelu_gate(ConstMatrix gate, ConstMatrix up, Gelu kind, Matrix y);  // in place
  // y = x + gate · h, gate one a column; empty: y = x + h. In place.
  Result<Done> add_gated(ConstMatrix x, std::span<const float> gate, ConstMatrix h, Matrix y);

  // --- Attention: q [S, heads · D], k and v [T, kv_heads · D], y [S, heads · D] ---
  // y = softmax(scale · q·kᵀ + mask) · v for each head, D a multiple of 8 from 8 to 512. No S × T
  // matrix is held. A query that sees no key gives 0.
  Result<Done> attention(ConstMatrix q, ConstMatrix k, ConstMatrix v,
                         const AttentionOptions& options, Matrix y);

  // --- Dense products: y [M, N] = x [M, K] · wᵀ + bias, w [N, K] in F32, F16 or BF16 ---
  Result<DenseWeight> pack_dense(ConstMatrix w, std::span<const float> bias = {});
  Result<Done> dense(ConstMatrix x, const DenseWeight& w, Matrix y);

  // --- Images ---
  Result<Done> group_norm(ConstMatrix x, const GroupNormOptions& options, Matrix y);  // in place
  // Each pixel becomes factor × factor pixels.
  Result<Done> upsample_nearest(ConstMatrix x, ImageSize size, std::uint64_t factor, Matrix y);
  // w is [out, in · kernel_height · kernel_width], as the file has it ([out, in, kh, kw]).
  Result<ConvWeight> pack_conv(ConstMatrix w, std::uint64_t in_channels, const ConvOptions& options,
                               std::span<const float> bias = {});
  // x is [height · width, in]; y is [height' · width', out] with height' = (height + pad_top +
  // pad_bottom − kernel_height) / stride + 1, and so the width.
  Result<Done> conv2d(ConstMatrix x, ImageSize size, const ConvWeight& w, Matrix y);

 private:
  explicit Ops(std::unique_ptr<runtime::Ops> state);
  std::unique_ptr<runtime::Ops> state_;
};

}  // namespace parfait

#endif  // PARFAIT_OPS_H_
