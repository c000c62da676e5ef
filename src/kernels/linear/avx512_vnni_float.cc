// The float product on AVX-512. Its sixteen partial sums are the lanes of a vector, so the tile of
// outputs that are made at once does not change a bit of them.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include "kernels/linear/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx512::lanes;

struct Product {
  const float* x;
  std::uint64_t ldx;
  const float* w;  // its first row is row n0 of the weight
  std::uint64_t n0, columns;
  const float* bias;
  const Matrix& y;
};

// The partial sums joined as a binary tree of neighbours, in the first lane.
inline __m512 join(__m512 p) {
  p = _mm512_add_ps(p, _mm512_permute_ps(p, 0xb1));
  p = _mm512_add_ps(p, _mm512_permute_ps(p, 0x4e));
  p = _mm512_add_ps(p, _mm512_shuffle_f32x4(p, p, 0xb1));
  return _mm512_add_ps(p, _mm512_shuffle_f32x4(p, p, 0x4e));
}

// y[m .. m + rows, n .. n + outputs).
template <int rows, int outputs>
void tile(const Product& product, std::uint64_t m, std::uint64_t n) {
  const std::uint64_t K = product.columns;
  const float* x = product.x + m * product.ldx;
  const float* w = product.w + (n - product.n0) * K;
  __m512 partial[rows][outputs];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j) partial[i][j] = _mm512_setzero_ps();
  std::uint64_t k = 0;
  for (; k + lanes <= K; k += lanes) {
    __m512 weights[outputs];
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j)
      weights[j] = _mm512_loadu_ps(w + static_cast<std::uint64_t>(j) * K + k);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m512 in = _mm512_loadu_ps(x + static_cast<std::uint64_t>(i) * product.ldx + k);
#pragma GCC unroll 4
      for (int j = 0; j < outputs; ++j)
        partial[i][j] = _mm512_fmadd_ps(in, weights[j], partial[i][j]);
    }
  }
  if (k < K) {  // lanes past the end add 0, which changes no sum that began at 0
    const __mmask16 mask = avx512::tail_mask(K - k);
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      const __m512 in =
          _mm512_maskz_loadu_ps(mask, x + static_cast<std::uint64_t>(i) * product.ldx + k);
#pragma GCC unroll 4
      for (int j = 0; j < outputs; ++j) {
        const __m512 weights =
            _mm512_maskz_loadu_ps(mask, w + static_cast<std::uint64_t>(j) * K + k);
        partial[i][j] = _mm512_fmadd_ps(in, weights, partial[i][j]);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < outputs; ++j) {
      const std::uint64_t at = n + static_cast<std::uint64_t>(j);
      __m512 value = join(partial[i][j]);
      if (product.bias) value = _mm512_add_ps(value, _mm512_set1_ps(product.bias[at]));
      const Matrix& y = product.y;
      avx512::store16(y.dtype, static_cast<std::byte*>(y.data),
                      (m + static_cast<std::uint64_t>(i)) * y.stride + at, 1, value);
    }
  }
}

template <int rows>
void tiles(const Product& product, std::uint64_t m, std::uint64_t n0, std::uint64_t n1) {
  std::uint64_t n = n0;
  for (; n + 4 <= n1; n += 4) tile<rows, 4>(product, m, n);
  for (; n < n1; ++n) tile<rows, 1>(product, m, n);
}

void multiply(const float* x, std::uint64_t ldx, std::uint64_t m0, std::uint64_t m1, const float* w,
              std::uint64_t n0, std::uint64_t n1, std::uint64_t columns, const float* bias,
              const Matrix& y) {
  const Product product{x, ldx, w, n0, columns, bias, y};
  std::uint64_t m = m0;
  for (; m + 6 <= m1; m += 6) tiles<6>(product, m, n0, n1);
  for (; m + 2 <= m1; m += 2) tiles<2>(product, m, n0, n1);
  for (; m < m1; ++m) tiles<1>(product, m, n0, n1);
}

}  // namespace

const FloatKernel float_avx512_vnni = {"decode.avx512_vnni", Isa::avx512_vnni, multiply};

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
