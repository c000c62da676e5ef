// The integer linear layer, in two steps that a caller may split over threads in any way:
//
//   quantize   x (F32, F16 or BF16) → r = x rotated per group of G columns (base/hadamard.h, in
//   float)
//              s_x = max(max|r| / q, 1e-30)            q = 127 (int8) or 7 (int4); true division
//              c   = clamp(rne(r / s_x), lo, q)        lo = -128 (int8) or -7 (int4); true division
//   multiply   a[m,n] = Σ_k c[m,k] · w[n,k]            exact in int32
//              y[m,n] = float(a) · (s_x[m] · s_w[n])   two float multiplications, in this order
//              y[m,n] = y[m,n] + bias[n]               one float addition, where there is a bias
//              stored rounded to y's type, once
//
// The weight's codes are int8 (-128 .. 127), int4 (-8 .. 7), or 4 or 6 bits that stand for int8
// values by the relative scale of their group of columns: w = T[s_rel][code], widen.h.
//
// |r| is at most q · s_x but for the rounding of a division, so c is never below -q; kernels rely
// on that. A row of x with a NaN or an infinity has s_x = NaN and codes 0, so its whole row of y is
// NaN. Every variant gives the same bits: integer sums are exact, and the float operations above
// are done one by one (no fused multiply-add). int32 cannot overflow for K < 131,072: |a| ≤ K · 128
// · 128. Sources: comfy-kitchen backends/eager/quantization.py (int8_linear), convrot_w4a4.py,
// w4a8_int8.py; where its eager path rounds intermediate values to x's type, float is kept here.
#ifndef PARFAIT_KERNELS_LINEAR_LINEAR_H_
#define PARFAIT_KERNELS_LINEAR_LINEAR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

inline constexpr std::uint64_t max_columns = 131'071;  // K past which int32 sums could overflow

// 64-byte aligned bytes, zeroed.
class AlignedBytes {
 public:
  AlignedBytes() = default;
  explicit AlignedBytes(std::size_t size);
  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    std::size_t size;
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  std::size_t size_ = 0;
};

// How a weight's values are coded.
enum class WeightCode { int8, int4, w4a8, w6a8 };

// A weight as it lies in a file, unaligned. The layouts are those of formats/*/layout.h.
struct WeightView {
  const std::byte* codes = nullptr;            // rows × row bytes
  const std::byte* relative_scales = nullptr;  // e4m3 codes, rows × (columns / scale_group)
  std::uint64_t rows = 0, columns = 0, scale_group = 0;
};

// A weight packed for one kernel.
struct PackedWeight {
  AlignedBytes codes;
  AlignedBytes tables;        // w4a8 and w6a8: T
  std::vector<float> scales;  // N
  std::vector<float> bias;    // N or none
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t rotate_group = 0, scale_group = 0;

  std::uint64_t bytes() const;
};

// Quantised rows of an activation. Codes are int8 in both modes.
struct QuantizedRows {
  AlignedBytes codes;              // rows × stride
  std::vector<float> scales;       // s_x, by row
  std::vector<std::int32_t> sums;  // Σ_k c, by row: kernels that bias the weights' codes need it
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t stride = 0;  // of codes: a multiple of 64 that is no less than columns; the rest of
                             // a row is zero

  void resize(std::uint64_t rows, std::uint64_t columns);
  static std::uint64_t stride_of(std::uint64_t columns);
};

// Quantises rows [first, last) of x into out, which has been resized for all of x. rotate_group 0:
// no rotation. Any row range may run on any thread. scratch holds the last row as rotated
// afterwards (convert/fast_rows.cc measures errors against it).
struct QuantizeKernel {
  std::string_view name;  // "quantize.reference"
  Isa isa;
  void (*run)(const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
              std::uint64_t rotate_group, Activation mode, QuantizedRows& out, float* scratch);
};
// Floats of scratch that a call needs, 64-byte aligned.
constexpr std::uint64_t quantize_scratch(std::uint64_t columns) { return columns + 16; }

struct LinearKernel {
  std::string_view name;  // "int8.avx512_vnni"
  Isa isa;
  WeightCode code;
  std::uint64_t row_tile;   // ranges of N given to pack and multiply start at multiples of this
  std::uint8_t table_bits;  // entries of T are held with these bits flipped
  std::uint64_t (*packed_bytes)(std::uint64_t rows, std::uint64_t columns,
                                std::uint64_t scale_group);
  // Bytes of scratch that a call of multiply needs, 64-byte aligned.
  std::uint64_t (*scratch_bytes)(std::uint64_t columns);
  // Packs rows [n0, n1) of the weight. out holds packed_bytes and began as zeros. In int8, row n
  // lies at packed_bytes(n, columns, 0) where n is a multiple of row_tile.
  void (*pack)(const WeightView&, std::uint64_t n0, std::uint64_t n1, std::byte* out);
  // y[m0..m1, n0..n1): one tile of the output. y is the whole matrix.
  void (*multiply)(const PackedWeight&, const QuantizedRows&, std::uint64_t m0, std::uint64_t m1,
                   std::uint64_t n0, std::uint64_t n1, const Matrix& y, std::byte* scratch);
};

// The lists, fastest first, the plain reference last.
std::span<const QuantizeKernel> quantize_kernels();
std::span<const LinearKernel> linear_kernels(WeightCode code);

// The float product that decode_rows uses: y[m, n] = Σ_k x[m,k] · w[n-n0,k] (+ bias[n]) for n in
// [n0, n1), where w holds the decoded rows n0..n1 and x is float, ldx floats a row. The sum has 16
// partial sums, partial i over k ≡ i (mod 16) in ascending order by fused multiply-add, joined as a
// binary tree of neighbours: the same bits for every variant and every tile.
struct FloatKernel {
  std::string_view name;  // "decode.avx512_vnni"
  Isa isa;
  void (*multiply)(const float* x, std::uint64_t ldx, std::uint64_t m0, std::uint64_t m1,
                   const float* w, std::uint64_t n0, std::uint64_t n1, std::uint64_t columns,
                   const float* bias, const Matrix& y);
};
std::span<const FloatKernel> float_kernels();

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_LINEAR_LINEAR_H_
