// Sixteen floats in two registers: what avx512_vnni.h has in one, lane by lane the same. x86-64
// only.
#ifndef PARFAIT_KERNELS_SIMD_AVX2_H_
#define PARFAIT_KERNELS_SIMD_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/simd/functions.h"
#include "parfait/model.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels::simd::avx2 {
namespace {  // each source has its own copy: the linker may not give one's code to another

inline constexpr std::uint64_t lanes = 16;

struct Floats {
  __m256 low, high;
};

inline Floats all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Floats operator+(Floats a, Floats b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Floats operator-(Floats a, Floats b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Floats operator*(Floats a, Floats b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Floats operator/(Floats a, Floats b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats square_root(Floats a) { return {_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)}; }
inline Floats magnitude(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
inline Floats negative(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
// b where one of them is NaN.
inline Floats minimum(Floats a, Floats b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
inline Floats maximum(Floats a, Floats b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
// x < 0 ? a : b
inline Floats where_negative(Floats x, Floats a, Floats b) {
  const __m256 zero = _mm256_setzero_ps();
  return {_mm256_blendv_ps(b.low, a.low, _mm256_cmp_ps(x.low, zero, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.high, a.high, _mm256_cmp_ps(x.high, zero, _CMP_LT_OQ))};
}

// p · 2ⁿ for n from −254 to 254, in two steps of which only the second one rounds.
inline __m256 times_power8(__m256 p, __m256 n) {
  const __m256i whole = _mm256_cvtps_epi32(n), bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_srai_epi32(whole, 1), second = _mm256_sub_epi32(whole, first);
  p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23)));
  return _mm256_mul_ps(p,
                       _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23)));
}
inline Floats times_power(Floats p, Floats n) {
  return {times_power8(p.low, n.low), times_power8(p.high, n.high)};
}

// The first count lanes; 0 in the others.
inline Floats first_of(Floats a, std::uint64_t count) {
  const __m256i counts = _mm256_set1_epi32(static_cast<int>(count < lanes ? count : lanes));
  const __m256i low = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  const __m256i high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  return {_mm256_and_ps(a.low, _mm256_castsi256_ps(_mm256_cmpgt_epi32(counts, low))),
          _mm256_and_ps(a.high, _mm256_castsi256_ps(_mm256_cmpgt_epi32(counts, high)))};
}

inline __m256 load8(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if (dtype == DType::bf16)
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  return _mm256_cvtph_ps(half);
}

// bf16 in the upper halves.
inline __m256i rounded_to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  return _mm256_blendv_epi8(rounded, quiet, nan);
}

// Rounded as base/floats.h defines it.
inline void store_whole(DType dtype, std::byte* at, Floats value) {
  if (dtype == DType::f32) {
    _mm256_storeu_ps(reinterpret_cast<float*>(at), value.low);
    _mm256_storeu_ps(reinterpret_cast<float*>(at + 32), value.high);
  } else if (dtype == DType::bf16) {
    const __m256i pairs = _mm256_packus_epi32(_mm256_srli_epi32(rounded_to_bf16(value.low), 16),
                                              _mm256_srli_epi32(rounded_to_bf16(value.high), 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), _mm256_permute4x64_epi64(pairs, 0xd8));
  } else {
    constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm256_cvtps_ph(value.low, mode));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 16), _mm256_cvtps_ph(value.high, mode));
  }
}

// Elements i .. i + 15 of data, or count of them and zeros.
inline Floats load(DType dtype, const std::byte* data, std::uint64_t i, std::uint64_t count) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  const std::byte* at = data + i * size;
  std::byte part[64];
  if (count < lanes) {
    std::memset(part, 0, sizeof(part));
    std::memcpy(part, at, count * size);
    at = part;
  }
  return {load8(dtype, at), load8(dtype, at + 8 * size)};
}
inline Floats load(const float* data, std::uint64_t count) {
  return load(DType::f32, reinterpret_cast<const std::byte*>(data), 0, count);
}

inline void store(DType dtype, std::byte* data, std::uint64_t i, std::uint64_t count,
                  Floats value) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  if (count >= lanes) return store_whole(dtype, data + i * size, value);
  std::byte part[64];
  store_whole(dtype, part, value);
  std::memcpy(data + i * size, part, count * size);
}
inline void store(float* data, std::uint64_t count, Floats value) {
  store(DType::f32, reinterpret_cast<std::byte*>(data), 0, count, value);
}

// The sum of all lanes, joined as a binary tree of neighbours, in every lane.
inline __m256 total8(__m256 p) {
  p = _mm256_add_ps(p, _mm256_permute_ps(p, 0xb1));
  p = _mm256_add_ps(p, _mm256_permute_ps(p, 0x4e));
  return _mm256_add_ps(p, _mm256_permute2f128_ps(p, p, 1));
}
inline Floats total(Floats a) {
  const __m256 sum = _mm256_add_ps(total8(a.low), total8(a.high));
  return {sum, sum};
}

// Lanes 1, 0, 3, 2, …
inline Floats swap_neighbours(Floats a) {
  return {_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)};
}
// Lanes 0, 0, 1, 1, … 7, 7.
inline Floats each_twice(Floats a) {
  return {_mm256_permutevar8x32_ps(a.low, _mm256_set_epi32(3, 3, 2, 2, 1, 1, 0, 0)),
          _mm256_permutevar8x32_ps(a.low, _mm256_set_epi32(7, 7, 6, 6, 5, 5, 4, 4))};
}
// −a in the even lanes, a in the odd ones.
inline Floats evens_negative(Floats a) {
  const __m256 signs = _mm256_castsi256_ps(_mm256_set1_epi64x(0x80000000));
  return {_mm256_xor_ps(a.low, signs), _mm256_xor_ps(a.high, signs)};
}

#include "kernels/simd/functions.inc"
#include "kernels/simd/matrices.inc"

}  // namespace
}  // namespace parfait::kernels::simd::avx2

#include "kernels/avx2_end.inc"

#endif  // PARFAIT_KERNELS_SIMD_AVX2_H_
