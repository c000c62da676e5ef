// Quantising an activation on AVX2: rotation, then the absolute maximum, then codes.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include "kernels/linear/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx2::lanes;

// --- Rotation, as base/hadamard.h defines it: y = t − (d, c, b, a), t = ½·((a + b) + (c + d)) ---

inline __m256 half(__m256 sum) { return _mm256_mul_ps(sum, _mm256_set1_ps(0.5f)); }

// Stride 1: a, b, c, d are neighbours.
inline __m256 stage_1(__m256 v) {
  const __m256 pair = _mm256_add_ps(v, _mm256_permute_ps(v, 0xb1));
  const __m256 sum = _mm256_add_ps(pair, _mm256_permute_ps(pair, 0x4e));
  return _mm256_sub_ps(half(sum), _mm256_permute_ps(v, 0x1b));
}

// Stride 4: a and b are the halves of one vector, c and d of the next.
inline void stage_4(__m256& ab, __m256& cd) {
  const __m256 ba = _mm256_permute2f128_ps(ab, ab, 1), dc = _mm256_permute2f128_ps(cd, cd, 1);
  const __m256 t = half(_mm256_add_ps(_mm256_add_ps(ab, ba), _mm256_add_ps(cd, dc)));
  ab = _mm256_sub_ps(t, dc);
  cd = _mm256_sub_ps(t, ba);
}

// A stage of stride 16 or more, in place.
void stage(float* r, std::uint64_t K, std::uint64_t stride) {
  for (std::uint64_t block = 0; block < K; block += 4 * stride) {
    for (float* at = r + block; at < r + block + stride; at += lanes) {
      const __m256 a = _mm256_load_ps(at), b = _mm256_load_ps(at + stride),
                   c = _mm256_load_ps(at + 2 * stride), d = _mm256_load_ps(at + 3 * stride);
      const __m256 t = half(_mm256_add_ps(_mm256_add_ps(a, b), _mm256_add_ps(c, d)));
      _mm256_store_ps(at, _mm256_sub_ps(t, d));
      _mm256_store_ps(at + stride, _mm256_sub_ps(t, c));
      _mm256_store_ps(at + 2 * stride, _mm256_sub_ps(t, b));
      _mm256_store_ps(at + 3 * stride, _mm256_sub_ps(t, a));
    }
  }
}

// The rotated row in r, which has room for whole vectors, and the bits of its largest magnitude. As
// integers, magnitudes order like floats, with infinities and NaN above all numbers.
std::uint32_t rotate(DType dtype, const std::byte* data, std::uint64_t start, std::uint64_t K,
                     std::uint64_t group, float* r) {
  for (std::uint64_t k = 0; k < K; k += 2 * lanes) {
    __m256 ab = avx2::load8(dtype, data, start + k, K - k);
    __m256 cd = k + lanes < K ? avx2::load8(dtype, data, start + k + lanes, K - k - lanes)
                              : _mm256_setzero_ps();
    if (group >= 4) {
      ab = stage_1(ab);
      cd = stage_1(cd);
    }
    if (group >= 16) stage_4(ab, cd);
    _mm256_store_ps(r + k, ab);
    _mm256_store_ps(r + k + lanes, cd);
  }
  for (std::uint64_t stride = 16; stride < group; stride *= 4) stage(r, K, stride);
  __m256i most = _mm256_setzero_si256();
  for (std::uint64_t k = 0; k < K; k += lanes)
    most = _mm256_max_epu32(most, _mm256_and_si256(_mm256_castps_si256(_mm256_load_ps(r + k)),
                                                   _mm256_set1_epi32(0x7fffffff)));
  alignas(32) std::uint32_t all[lanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(all), most);
  std::uint32_t bits = 0;
  for (const std::uint32_t one : all) bits = one > bits ? one : bits;
  return bits;
}

// --- Quantisation ---

// The codes of one rotated row, padded with zeros to whole vectors; returns their sum.
std::int32_t make_codes(const float* r, std::uint64_t K, float s_x, Activation mode, std::byte* c) {
  const __m256i lo = _mm256_set1_epi32(mode == Activation::int8 ? -128 : -7);
  const __m256i hi = _mm256_set1_epi32(mode == Activation::int8 ? 127 : 7);
  const __m256 divisor = _mm256_set1_ps(s_x);
  __m256i sum = _mm256_setzero_si256();
  for (std::uint64_t k = 0; k < K; k += lanes) {
    const __m256 quotient = _mm256_div_ps(_mm256_load_ps(r + k), divisor);
    const __m256 rounded = _mm256_round_ps(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m256i code = _mm256_max_epi32(_mm256_min_epi32(_mm256_cvtps_epi32(rounded), hi), lo);
    sum = _mm256_add_epi32(sum, code);
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(c + k), _mm_packs_epi16(words, words));
  }
  alignas(32) std::int32_t all[lanes];
  _mm256_store_si256(reinterpret_cast<__m256i*>(all), sum);
  std::int32_t total = 0;
  for (const std::int32_t one : all) total += one;
  return total;
}

#include "kernels/linear/quantize_rows.inc"

}  // namespace

const QuantizeKernel quantize_avx2 = {"quantize.avx2", Isa::avx2, quantize};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
