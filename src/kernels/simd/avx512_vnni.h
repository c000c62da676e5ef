// Sixteen floats in one register: the vocabulary of the sources that are written once for several
// instruction sets (*.inc), on AVX-512. avx2.h has the same. x86-64 only.
#ifndef PARFAIT_KERNELS_SIMD_AVX512_VNNI_H_
#define PARFAIT_KERNELS_SIMD_AVX512_VNNI_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/functions.h"
#include "parfait/model.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels::simd::avx512 {
namespace {  // each source has its own copy: the linker may not give one's code to another

inline constexpr std::uint64_t lanes = 16;

struct Floats {
  __m512 v;
};

inline Floats all(float value) { return {_mm512_set1_ps(value)}; }
inline Floats operator+(Floats a, Floats b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Floats operator-(Floats a, Floats b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Floats operator*(Floats a, Floats b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Floats operator/(Floats a, Floats b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Floats fma(Floats a, Floats b, Floats c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline Floats square_root(Floats a) { return {_mm512_sqrt_ps(a.v)}; }
inline Floats magnitude(Floats a) { return {_mm512_abs_ps(a.v)}; }
inline Floats negative(Floats a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
// b where one of them is NaN.
inline Floats minimum(Floats a, Floats b) { return {_mm512_min_ps(a.v, b.v)}; }
inline Floats maximum(Floats a, Floats b) { return {_mm512_max_ps(a.v, b.v)}; }
// x < 0 ? a : b
inline Floats where_negative(Floats x, Floats a, Floats b) {
  return {_mm512_mask_mov_ps(b.v, _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ), a.v)};
}
// p · 2ⁿ, rounded once.
inline Floats times_power(Floats p, Floats n) { return {_mm512_scalef_ps(p.v, n.v)}; }

inline __mmask16 first_lanes(std::uint64_t count) {
  return count >= lanes ? static_cast<__mmask16>(0xffff)
                        : static_cast<__mmask16>((1u << count) - 1);
}
// The first count lanes; 0 in the others.
inline Floats first_of(Floats a, std::uint64_t count) {
  return {_mm512_maskz_mov_ps(first_lanes(count), a.v)};
}

inline __m512 widened(DType dtype, __m256i half) {
  if (dtype == DType::bf16)
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return _mm512_cvtph_ps(half);
}

// Elements i .. i + 15 of data, or count of them and zeros.
inline Floats load(DType dtype, const std::byte* data, std::uint64_t i, std::uint64_t count) {
  if (dtype == DType::f32) {
    if (count >= lanes) return {_mm512_loadu_ps(data + 4 * i)};
    return {_mm512_maskz_loadu_ps(first_lanes(count), data + 4 * i)};
  }
  if (count >= lanes) return {widened(dtype, _mm256_loadu_epi16(data + 2 * i))};
  return {widened(dtype, _mm256_maskz_loadu_epi16(first_lanes(count), data + 2 * i))};
}
inline Floats load(const float* data, std::uint64_t count) {
  return load(DType::f32, reinterpret_cast<const std::byte*>(data), 0, count);
}

inline __m256i to_bf16(__m512 value) {
  const __m512i bits = _mm512_castps_si512(value);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}

// Rounded as base/floats.h defines it. Whole vectors are stored without a mask: a masked store of
// halves takes some processors many times as long.
inline void store(DType dtype, std::byte* data, std::uint64_t i, std::uint64_t count,
                  Floats value) {
  if (dtype == DType::f32) {
    if (count >= lanes)
      _mm512_storeu_ps(data + 4 * i, value.v);
    else
      _mm512_mask_storeu_ps(data + 4 * i, first_lanes(count), value.v);
    return;
  }
  const __m256i half =
      dtype == DType::bf16
          ? to_bf16(value.v)
          : _mm512_cvtps_ph(value.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  if (count >= lanes)
    _mm256_storeu_epi16(data + 2 * i, half);
  else
    _mm256_mask_storeu_epi16(data + 2 * i, first_lanes(count), half);
}
inline void store(float* data, std::uint64_t count, Floats value) {
  store(DType::f32, reinterpret_cast<std::byte*>(data), 0, count, value);
}

// The sum of all lanes, joined as a binary tree of neighbours, in every lane.
inline Floats total(Floats a) {
  __m512 p = a.v;
  p = _mm512_add_ps(p, _mm512_permute_ps(p, 0xb1));
  p = _mm512_add_ps(p, _mm512_permute_ps(p, 0x4e));
  p = _mm512_add_ps(p, _mm512_shuffle_f32x4(p, p, 0xb1));
  return {_mm512_add_ps(p, _mm512_shuffle_f32x4(p, p, 0x4e))};
}

// Lanes 1, 0, 3, 2, …
inline Floats swap_neighbours(Floats a) { return {_mm512_permute_ps(a.v, 0xb1)}; }
// Lanes 0, 0, 1, 1, … 7, 7.
inline Floats each_twice(Floats a) {
  const __m512i from = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
  return {_mm512_permutexvar_ps(from, a.v)};
}
// −a in the even lanes, a in the odd ones.
inline Floats evens_negative(Floats a) {
  return {_mm512_xor_ps(a.v, _mm512_castsi512_ps(_mm512_set1_epi64(0x80000000)))};
}

#include "kernels/simd/functions.inc"
#include "kernels/simd/matrices.inc"

}  // namespace
}  // namespace parfait::kernels::simd::avx512

#include "kernels/avx512_vnni_end.inc"

#endif  // PARFAIT_KERNELS_SIMD_AVX512_VNNI_H_
