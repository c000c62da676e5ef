// The float product on Arm. Its sixteen partial sums are the lanes of four vectors.

#include "kernels/linear/variants.h"

#if defined(__aarch64__)

#include "kernels/linear/neon.h"

namespace parfait::kernels {
namespace {

using neon::lanes;
constexpr int parts = 4;
constexpr std::uint64_t sums = parts * lanes;

// The partial sums joined as a binary tree of neighbours.
inline float join(const float32x4_t (&p)[parts]) {
  const float32x4_t pairs = vpaddq_f32(vpaddq_f32(p[0], p[1]), vpaddq_f32(p[2], p[3]));
  return (vgetq_lane_f32(pairs, 0) + vgetq_lane_f32(pairs, 1)) +
         (vgetq_lane_f32(pairs, 2) + vgetq_lane_f32(pairs, 3));
}

inline float32x4_t load(const float* at, std::uint64_t i, std::uint64_t count) {
  return neon::load4(DType::f32, reinterpret_cast<const std::byte*>(at), i, count);
}

struct Product {
  const float* x;
  std::uint64_t ldx;
  const float* w;  // its first row is row n0 of the weight
  std::uint64_t n0, columns;
  const float* bias;
  const Matrix& y;
};

// y[m .. m + rows, n .. n + outputs).
template <int rows, int outputs>
void tile(const Product& product, std::uint64_t m, std::uint64_t n) {
  const std::uint64_t K = product.columns;
  const float* x = product.x + m * product.ldx;
  const float* w = product.w + (n - product.n0) * K;
  float32x4_t partial[rows][outputs][parts];
  for (auto& row : partial)
    for (auto& output : row)
      for (auto& part : output) part = vdupq_n_f32(0);
  // Lanes past the end add 0, which changes no sum that began at 0.
  for (std::uint64_t k = 0; k < K; k += sums) {
#pragma GCC unroll 4
    for (int part = 0; part < parts; ++part) {
      const std::uint64_t at = k + static_cast<std::uint64_t>(part) * lanes;
      if (at >= K) break;
      float32x4_t weights[outputs];
#pragma GCC unroll 2
      for (int j = 0; j < outputs; ++j)
        weights[j] = load(w + static_cast<std::uint64_t>(j) * K, at, K - at);
#pragma GCC unroll 2
      for (int i = 0; i < rows; ++i) {
        const float32x4_t in = load(x + static_cast<std::uint64_t>(i) * product.ldx, at, K - at);
#pragma GCC unroll 2
        for (int j = 0; j < outputs; ++j)
          partial[i][j][part] = vfmaq_f32(partial[i][j][part], in, weights[j]);
      }
    }
  }
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < outputs; ++j) {
      const std::uint64_t at = n + static_cast<std::uint64_t>(j);
      float value = join(partial[i][j]);
      if (product.bias) value = value + product.bias[at];
      const Matrix& y = product.y;
      neon::store4(y.dtype, static_cast<std::byte*>(y.data),
                   (m + static_cast<std::uint64_t>(i)) * y.stride + at, 1, vdupq_n_f32(value));
    }
  }
}

template <int rows>
void tiles(const Product& product, std::uint64_t m, std::uint64_t n0, std::uint64_t n1) {
  std::uint64_t n = n0;
  for (; n + 2 <= n1; n += 2) tile<rows, 2>(product, m, n);
  for (; n < n1; ++n) tile<rows, 1>(product, m, n);
}

void multiply(const float* x, std::uint64_t ldx, std::uint64_t m0, std::uint64_t m1, const float* w,
              std::uint64_t n0, std::uint64_t n1, std::uint64_t columns, const float* bias,
              const Matrix& y) {
  const Product product{x, ldx, w, n0, columns, bias, y};
  std::uint64_t m = m0;
  for (; m + 2 <= m1; m += 2) tiles<2>(product, m, n0, n1);
  for (; m < m1; ++m) tiles<1>(product, m, n0, n1);
}

}  // namespace

const FloatKernel float_neon_dotprod = {"decode.neon_dotprod", Isa::neon_dotprod, multiply};

}  // namespace parfait::kernels

#endif  // __aarch64__
