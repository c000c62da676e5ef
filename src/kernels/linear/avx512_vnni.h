// What the AVX-512 VNNI variants share: loads and stores of the activation's types, and the
// rounding that base/floats.h defines, sixteen values at a time. x86-64 only.
#ifndef PARFAIT_KERNELS_LINEAR_AVX512_VNNI_H_
#define PARFAIT_KERNELS_LINEAR_AVX512_VNNI_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "parfait/dtype.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels::avx512 {
namespace {  // each source has its own copy: the linker may not give one's code to another

inline constexpr std::uint64_t lanes = 16;

inline __mmask16 tail_mask(std::uint64_t count) {
  return count >= lanes ? static_cast<__mmask16>(0xffff)
                        : static_cast<__mmask16>((1u << count) - 1);
}

// Elements i .. i + 15 of data as floats; those not in the mask are 0 and not touched.
inline __m512 load16(DType dtype, const std::byte* data, std::uint64_t i, __mmask16 mask) {
  if (dtype == DType::f32) return _mm512_maskz_loadu_ps(mask, data + 4 * i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, data + 2 * i);
  if (dtype == DType::bf16)
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return _mm512_cvtph_ps(half);
}

inline void store16(DType dtype, std::byte* data, std::uint64_t i, __mmask16 mask, __m512 value) {
  if (dtype == DType::f32) {
    _mm512_mask_storeu_ps(data + 4 * i, mask, value);
  } else if (dtype == DType::f16) {
    _mm256_mask_storeu_epi16(data + 2 * i, mask,
                             _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  } else {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded =
        _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __m512i top = _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16);
    _mm256_mask_storeu_epi16(data + 2 * i, mask, _mm512_cvtepi32_epi16(top));
  }
}

}  // namespace
}  // namespace parfait::kernels::avx512

#include "kernels/avx512_vnni_end.inc"

#endif  // PARFAIT_KERNELS_LINEAR_AVX512_VNNI_H_
