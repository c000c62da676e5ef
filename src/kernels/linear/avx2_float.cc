// The float product on AVX2. Its sixteen partial sums are the lanes of two vectors.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include "kernels/linear/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx2::lanes;
constexpr std::uint64_t sums = 2 * lanes;

struct Product {
  const float* x;
  std::uint64_t ldx;
  const float* w;  // its first row is row n0 of the weight
  std::uint64_t n0, columns;
  const float* bias;
  const Matrix& y;
};

inline __m256 join_in_pieces(__m256 p) {
  p = _mm256_add_ps(p, _mm256_permute_ps(p, 0xb1));
  return _mm256_add_ps(p, _mm256_permute_ps(p, 0x4e));
}

// The partial sums joined as a binary tree of neighbours.
inline float join(__m256 low, __m256 high) {
  low = join_in_pieces(low);
  high = join_in_pieces(high);
  const float a = _mm256_cvtss_f32(low), b = _mm_cvtss_f32(_mm256_extractf128_ps(low, 1));
  const float c = _mm256_cvtss_f32(high), d = _mm_cvtss_f32(_mm256_extractf128_ps(high, 1));
  return (a + b) + (c + d);
}

inline __m256 load(const float* at, std::uint64_t i, std::uint64_t count) {
  return avx2::load8(DType::f32, reinterpret_cast<const std::byte*>(at), i, count);
}

template <int rows, int outputs>
inline void add(const Product& product, const float* x, const float* w, std::uint64_t k,
                std::uint64_t count, int half, __m256 (&partial)[rows][outputs][2]) {
  __m256 weights[outputs];
#pragma GCC unroll 4
  for (int j = 0; j < outputs; ++j)
    weights[j] = load(w + static_cast<std::uint64_t>(j) * product.columns, k, count);
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
    const __m256 in = load(x + static_cast<std::uint64_t>(i) * product.ldx, k, count);
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j)
      partial[i][j][half] = _mm256_fmadd_ps(in, weights[j], partial[i][j][half]);
  }
}

// y[m .. m + rows, n .. n + outputs).
template <int rows, int outputs>
void tile(const Product& product, std::uint64_t m, std::uint64_t n) {
  const std::uint64_t K = product.columns;
  const float* x = product.x + m * product.ldx;
  const float* w = product.w + (n - product.n0) * K;
  __m256 partial[rows][outputs][2];
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j) partial[i][j][0] = partial[i][j][1] = _mm256_setzero_ps();
  std::uint64_t k = 0;
  for (; k + sums <= K; k += sums) {
    add(product, x, w, k, lanes, 0, partial);
    add(product, x, w, k + lanes, lanes, 1, partial);
  }
  // Lanes past the end add 0, which changes no sum that began at 0.
  if (k < K) add(product, x, w, k, K - k, 0, partial);
  if (k + lanes < K) add(product, x, w, k + lanes, K - k - lanes, 1, partial);
#pragma GCC unroll 4
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j) {
      const std::uint64_t at = n + static_cast<std::uint64_t>(j);
      float value = join(partial[i][j][0], partial[i][j][1]);
      if (product.bias) value = value + product.bias[at];
      const Matrix& y = product.y;
      avx2::store8(y.dtype, static_cast<std::byte*>(y.data),
                   (m + static_cast<std::uint64_t>(i)) * y.stride + at, 1, _mm256_set1_ps(value));
    }
  }
}

template <int rows>
void tiles(const Product& product, std::uint64_t m, std::uint64_t n0, std::uint64_t n1) {
  std::uint64_t n = n0;
  for (; n + 3 <= n1; n += 3) tile<rows, 3>(product, m, n);
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

const FloatKernel float_avx2 = {"decode.avx2", Isa::avx2, multiply};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
