// Attention on AVX2, in float. The register tile is 6 queries by 16 keys or columns.

#include "kernels/attention/variants.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "kernels/linear/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

constexpr int lanes = 8, tile_rows = 6, depth = 1;
using Element = float;
using Floats = __m256;
using Weights = __m256;
using Pairs = __m256;

inline Floats zeros() { return _mm256_setzero_ps(); }
inline Floats all(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* at) { return _mm256_loadu_ps(at); }
inline void store(float* at, Floats v) { _mm256_storeu_ps(at, v); }
inline Floats multiply(Floats a, Floats b) { return _mm256_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }
inline Floats greater(Floats a, Floats b) { return _mm256_max_ps(a, b); }

inline float largest(Floats v) {
  v = _mm256_max_ps(v, _mm256_permute2f128_ps(v, v, 1));
  v = _mm256_max_ps(v, _mm256_permute_ps(v, 0x4e));
  return _mm256_cvtss_f32(_mm256_max_ps(v, _mm256_permute_ps(v, 0xb1)));
}
inline float total(Floats v) {
  v = _mm256_add_ps(v, _mm256_permute2f128_ps(v, v, 1));
  v = _mm256_add_ps(v, _mm256_permute_ps(v, 0x4e));
  return _mm256_cvtss_f32(_mm256_add_ps(v, _mm256_permute_ps(v, 0xb1)));
}

// As avx512_vnni.h; what lies below 2^-126 becomes 0.
inline Floats exp2(Floats v) {
  v = _mm256_max_ps(all(-200.0f), v);
  const Floats n = _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats f = _mm256_sub_ps(v, n);
  Floats y = all(1.54035304e-4f);
  y = multiply_add(y, f, all(1.33335581e-3f));
  y = multiply_add(y, f, all(9.61812911e-3f));
  y = multiply_add(y, f, all(5.55041087e-2f));
  y = multiply_add(y, f, all(2.40226507e-1f));
  y = multiply_add(y, f, all(6.93147181e-1f));
  y = multiply_add(y, f, all(1.0f));
  const __m256i power = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
  const Floats scaled = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
  const Floats kept = _mm256_and_ps(scaled, _mm256_cmp_ps(n, all(-126.0f), _CMP_GE_OQ));
  return _mm256_blendv_ps(kept, v, _mm256_cmp_ps(v, v, _CMP_UNORD_Q));
}

inline Floats hide(Floats v, std::uint64_t first) {
  const __m256 lane = _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256 hidden =
      _mm256_cmp_ps(lane, all(static_cast<float>(first < 8 ? first : 8)), _CMP_GE_OQ);
  return _mm256_blendv_ps(v, all(-__builtin_inff()), hidden);
}

inline Weights load_weights(const Element* at) { return load(at); }
inline Pairs broadcast(const Element* at) { return all(*at); }
inline void add_product(Floats& sums, Weights w, Pairs c) { sums = multiply_add(w, c, sums); }

inline Floats store_rounded(Element* at, Floats v0, Floats v1) {
  store(at, v0);
  store(at + lanes, v1);
  return _mm256_add_ps(v0, v1);
}

inline void load_query(const AttentionProblem& p, std::uint64_t i, std::uint64_t column,
                       std::uint64_t count, Element* at) {
  for (std::uint64_t d = 0; d < count; d += lanes)  // count is a multiple of 8
    store(at + d, avx2::load8(p.q.dtype, static_cast<const std::byte*>(p.q.data),
                              i * p.q.stride + column + d, lanes));
}

inline void store_output(const AttentionProblem& p, std::uint64_t i, std::uint64_t column,
                         std::uint64_t count, Floats v) {
  avx2::store8(p.y.dtype, static_cast<std::byte*>(p.y.data), i * p.y.stride + column, count, v);
}

void pack_keys(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
               std::uint64_t keys, const float* bias, Element* out) {
  const auto* data = static_cast<const std::byte*>(p.k.data);
  const std::uint64_t D = p.head_size;
  for (std::uint64_t n = 0; n < keys; ++n) {
    Element* to = out + n / 16 * D * 16 + n % 16;
    for (std::uint64_t d = 0; d < D; d += lanes) {
      alignas(32) float eight[lanes] = {};
      if (bias[n] == 0)
        store(eight, avx2::load8(p.k.dtype, data, (first + n) * p.k.stride + column + d, lanes));
      for (std::uint64_t i = 0; i < lanes; ++i) to[(d + i) * 16] = eight[i];
    }
  }
}

void pack_values(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
                 std::uint64_t keys, std::uint64_t wide, const float* bias, Element* out) {
  const auto* data = static_cast<const std::byte*>(p.v.data);
  for (std::uint64_t n = 0; n < keys; ++n)
    for (std::uint64_t c = 0; c < wide; c += lanes)
      store(out + c / 16 * 256 * 16 + n * 16 + c % 16,
            bias[n] == 0 && c < p.head_size
                ? avx2::load8(p.v.dtype, data, (first + n) * p.v.stride + column + c, lanes)
                : zeros());
}

#include "kernels/attention/online_softmax.inc"

}  // namespace

const AttentionKernel attention_avx2 = attention_kernel("attention.avx2", Isa::avx2, false);

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
