// Quantising an activation on AVX-512: rotation in registers, then the absolute maximum, then
// codes.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/linear/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx512::lanes;

// --- Rotation, as base/hadamard.h defines it: y = t − (d, c, b, a), t = ½·((a + b) + (c + d)) ---

// Stride 1: a, b, c, d are neighbours.
inline __m512 stage_1(__m512 v) {
  const __m512 pair = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  const __m512 sum = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0x4e));
  return _mm512_sub_ps(_mm512_mul_ps(sum, _mm512_set1_ps(0.5f)), _mm512_permute_ps(v, 0x1b));
}

// Stride 4: a, b, c, d are the four 128-bit lanes.
inline __m512 stage_4(__m512 v) {
  const __m512 pair = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  const __m512 sum = _mm512_add_ps(pair, _mm512_shuffle_f32x4(pair, pair, 0x4e));
  return _mm512_sub_ps(_mm512_mul_ps(sum, _mm512_set1_ps(0.5f)), _mm512_shuffle_f32x4(v, v, 0x1b));
}

// Strides of whole vectors.
inline void butterfly(__m512& a, __m512& b, __m512& c, __m512& d) {
  const __m512 sum = _mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d));
  const __m512 t = _mm512_mul_ps(sum, _mm512_set1_ps(0.5f));
  const __m512 last = a;
  a = _mm512_sub_ps(t, d);
  d = _mm512_sub_ps(t, last);
  const __m512 third = b;
  b = _mm512_sub_ps(t, c);
  c = _mm512_sub_ps(t, third);
}

// As integers, magnitudes order like floats, with infinities and NaN above all numbers.
inline __m512i max_magnitude(__m512i most, __m512 v) {
  return _mm512_max_epu32(most,
                          _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}

// Reads columns [0, K) of a row, applies the stages of stride 1 .. 4·count, and stores floats in r.
// K is a multiple of 16·count unless count is 1. Returns the largest magnitudes.
template <int count, int small_stages>
__m512i rotate_row(DType dtype, const std::byte* data, std::uint64_t start, std::uint64_t K,
                   float* r) {
  __m512i most = _mm512_setzero_si512();
  for (std::uint64_t k = 0; k < K; k += lanes * count) {
    __m512 v[count];
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
      const std::uint64_t at = k + lanes * static_cast<std::uint64_t>(i);
      v[i] = avx512::load16(dtype, data, start + at,
                            count == 1 ? avx512::tail_mask(K - at) : avx512::tail_mask(lanes));
      if constexpr (small_stages >= 1) v[i] = stage_1(v[i]);
      if constexpr (small_stages >= 2) v[i] = stage_4(v[i]);
    }
    if constexpr (count >= 4) {
#pragma GCC unroll 4
      for (int i = 0; i < count; i += 4) butterfly(v[i], v[i + 1], v[i + 2], v[i + 3]);
    }
    if constexpr (count == 16) {
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) butterfly(v[i], v[i + 4], v[i + 8], v[i + 12]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < count; ++i) {
      most = max_magnitude(most, v[i]);
      _mm512_store_ps(r + k + lanes * static_cast<std::uint64_t>(i), v[i]);
    }
  }
  return most;
}

// The stages of stride 256 and above, in place.
__m512i rotate_wide(float* r, std::uint64_t K, std::uint64_t group) {
  for (std::uint64_t stride = 256; stride < group; stride *= 4) {
    for (std::uint64_t block = 0; block < K; block += 4 * stride) {
      for (std::uint64_t i = block; i < block + stride; i += lanes) {
        __m512 a = _mm512_load_ps(r + i), b = _mm512_load_ps(r + i + stride);
        __m512 c = _mm512_load_ps(r + i + 2 * stride), d = _mm512_load_ps(r + i + 3 * stride);
        butterfly(a, b, c, d);
        _mm512_store_ps(r + i, a);
        _mm512_store_ps(r + i + stride, b);
        _mm512_store_ps(r + i + 2 * stride, c);
        _mm512_store_ps(r + i + 3 * stride, d);
      }
    }
  }
  __m512i most = _mm512_setzero_si512();
  for (std::uint64_t k = 0; k < K; k += lanes) most = max_magnitude(most, _mm512_load_ps(r + k));
  return most;
}

// The rotated row in r, which has room for whole vectors, and the bits of its largest magnitude.
std::uint32_t rotate(DType dtype, const std::byte* data, std::uint64_t start, std::uint64_t K,
                     std::uint64_t group, float* r) {
  __m512i most;
  switch (group) {
    case 0:
      most = rotate_row<1, 0>(dtype, data, start, K, r);
      break;
    case 4:
      most = rotate_row<1, 1>(dtype, data, start, K, r);
      break;
    case 16:
      most = rotate_row<1, 2>(dtype, data, start, K, r);
      break;
    case 64:
      most = rotate_row<4, 2>(dtype, data, start, K, r);
      break;
    case 256:
      most = rotate_row<16, 2>(dtype, data, start, K, r);
      break;
    default:
      rotate_row<16, 2>(dtype, data, start, K, r);
      most = rotate_wide(r, K, group);
  }
  return _mm512_reduce_max_epu32(most);
}

// --- Quantisation ---

// The codes of one rotated row, padded with zeros to whole vectors; returns their sum.
std::int32_t make_codes(const float* r, std::uint64_t K, float s_x, Activation mode, std::byte* c) {
  const __m512i lo = _mm512_set1_epi32(mode == Activation::int8 ? -128 : -7);
  const __m512i hi = _mm512_set1_epi32(mode == Activation::int8 ? 127 : 7);
  const __m512 divisor = _mm512_set1_ps(s_x);
  __m512i sum = _mm512_setzero_si512();
  for (std::uint64_t k = 0; k < K; k += lanes) {
    const __m512 quotient = _mm512_div_ps(_mm512_load_ps(r + k), divisor);
    const __m512i rounded =
        _mm512_cvt_roundps_epi32(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512i code = _mm512_max_epi32(_mm512_min_epi32(rounded, hi), lo);
    sum = _mm512_add_epi32(sum, code);
    _mm_store_si128(reinterpret_cast<__m128i*>(c + k), _mm512_cvtepi32_epi8(code));
  }
  return _mm512_reduce_add_epi32(sum);
}

#include "kernels/linear/quantize_rows.inc"

}  // namespace

const QuantizeKernel quantize_avx512_vnni = {"quantize.avx512_vnni", Isa::avx512_vnni, quantize};

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
