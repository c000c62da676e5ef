// Dense products and convolutions with a weight in F32, F16 or BF16.
//
//   dense    y [M, N] = x [M, K] · wᵀ + bias          w [N, K]
//   conv     y [oh · ow, O] from x [h · w, C]         w [O, C · kh · kw], as files have it
//            y[(oy, ox), o] = bias[o] + Σ over c, i, j of x[(oy·s + i − top, ox·s + j − left), c] ·
//            w[o, c, i, j], where x is 0 outside
//
// Products and sums are float; y is rounded once, to its own type. Where x and w are both BF16 and
// the machine multiplies BF16, products are of bf16 values, exactly as float has them, but that the
// processor takes values below 2^-126 as 0; in every other mix both are widened to float, so no
// digit of x is lost. Sums: the reference adds in ascending order of k (of c, i, j);
// oneDNN in an order of its own, so results differ by float rounding of K terms, and do not depend
// on how the output is cut as long as the pieces are the same.
//
// Weights are packed once and held as they were stored (BF16 stays BF16): a mix that needs them
// wider widens a piece at a time, in scratch.
#ifndef PARFAIT_KERNELS_DENSE_DENSE_H_
#define PARFAIT_KERNELS_DENSE_DENSE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/linear/linear.h"
#include "parfait/ops.h"

namespace parfait::kernels {

// Outputs of a dense layer are cut into pieces of these.
inline constexpr std::uint64_t dense_rows = 256, dense_outputs = 512;

struct PackedDense {
  DType dtype = DType::f32;
  std::uint64_t rows = 0, columns = 0;  // N, K
  std::vector<float> bias;              // N or none
  AlignedBytes plain;                   // w row-major, or:
  std::vector<AlignedBytes> pieces;     // of dense_outputs rows each, in the kernel's layout
  std::shared_ptr<const void> layout;   // what the kernel remembers of that layout
};

struct ConvShape {
  ImageSize in, out;
  std::uint64_t in_channels = 0, out_channels = 0;
  ConvOptions options;
};

struct PackedConv {
  DType dtype = DType::f32;
  std::uint64_t in_channels = 0, out_channels = 0;
  ConvOptions options;
  std::vector<float> bias;
  AlignedBytes plain;  // w as files have it, [O, C, kh, kw]
};

// Calls return false where memory ran out or the library behind the kernel refused.
struct DenseKernel {
  std::string_view name;  // "dense.onednn"
  Isa isa;
  bool (*pack)(const ConstMatrix& w, PackedDense& out);
  // y[m0..m1, n0..n1), n0 a multiple of dense_outputs, both ranges no longer than a piece.
  bool (*multiply)(const PackedDense&, const ConstMatrix& x, std::uint64_t m0, std::uint64_t m1,
                   std::uint64_t n0, std::uint64_t n1, const Matrix& y,
                   std::vector<float>& scratch);
};
struct ConvKernel {
  std::string_view name;  // "conv.onednn"
  Isa isa;
  // Output rows [oy0, oy1).
  bool (*convolve)(const PackedConv&, const ConvShape&, const ConstMatrix& x, std::uint64_t oy0,
                   std::uint64_t oy1, const Matrix& y, std::vector<float>& scratch);
};

// Products of BF16 by BF16 with a weight as it lies in a file, which is not packed: y[m0..m1,
// n0..n1) = x · wᵀ + bias. Sums as above; bias may be null.
struct Bf16Kernel {
  std::string_view name;  // "bf16.onednn"
  Isa isa;
  bool (*multiply)(const ConstMatrix& w, const float* bias, const ConstMatrix& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y,
                   std::vector<float>& scratch);
  // Bytes of scratch that a call of multiply grows to on each thread, the library's own included.
  std::uint64_t (*scratch_bytes)(std::uint64_t columns);
};

// Fastest first, the plain reference last. There may be no kernel for BF16.
std::span<const Bf16Kernel> bf16_kernels();
std::span<const DenseKernel> dense_kernels();
std::span<const ConvKernel> conv_kernels();

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_DENSE_DENSE_H_
