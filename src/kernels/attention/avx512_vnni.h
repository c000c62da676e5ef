// What both AVX-512 variants share: vectors of 16 floats. x86-64 only.
#ifndef PARFAIT_KERNELS_ATTENTION_AVX512_VNNI_H_
#define PARFAIT_KERNELS_ATTENTION_AVX512_VNNI_H_

#include <immintrin.h>

#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/linear/avx512_vnni.h"
#include "kernels/linear/avx512_vnni_pack.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels::avx512 {
namespace {  // each source has its own copy: the linker may not give one's code to another

using Floats = __m512;

inline Floats zeros() { return _mm512_setzero_ps(); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* at) { return _mm512_loadu_ps(at); }
inline void store(float* at, Floats v) { _mm512_storeu_ps(at, v); }
inline Floats multiply(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats greater(Floats a, Floats b) { return _mm512_max_ps(a, b); }

inline float largest(Floats v) {
  v = _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = _mm512_max_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = _mm512_max_ps(v, _mm512_permute_ps(v, 0x4e));
  return _mm512_cvtss_f32(_mm512_max_ps(v, _mm512_permute_ps(v, 0xb1)));
}
inline float total(Floats v) {
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
  v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  v = _mm512_add_ps(v, _mm512_permute_ps(v, 0x4e));
  return _mm512_cvtss_f32(_mm512_add_ps(v, _mm512_permute_ps(v, 0xb1)));
}

// 2^v = 2^n · 2^f with n the nearest integer; the series of 2^f up to f^6 errs by 1.2e-7 for |f| of
// a half. What lies below 2^-149 becomes 0; NaN stays.
inline Floats exp2(Floats v) {
  v = _mm512_max_ps(all(-200.0f), v);
  const Floats n = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const Floats f = _mm512_sub_ps(v, n);
  Floats y = all(1.54035304e-4f);
  y = multiply_add(y, f, all(1.33335581e-3f));
  y = multiply_add(y, f, all(9.61812911e-3f));
  y = multiply_add(y, f, all(5.55041087e-2f));
  y = multiply_add(y, f, all(2.40226507e-1f));
  y = multiply_add(y, f, all(6.93147181e-1f));
  y = multiply_add(y, f, all(1.0f));
  return _mm512_scalef_ps(y, n);
}

inline Floats hide(Floats v, std::uint64_t first) {
  return _mm512_mask_mov_ps(all(-__builtin_inff()), tail_mask(first), v);
}

inline void store_output(const AttentionProblem& p, std::uint64_t i, std::uint64_t column,
                         std::uint64_t count, Floats v) {
  store16(p.y.dtype, static_cast<std::byte*>(p.y.data), i * p.y.stride + column, tail_mask(count),
          v);
}

}  // namespace
}  // namespace parfait::kernels::avx512

#include "kernels/avx512_vnni_end.inc"

#endif  // PARFAIT_KERNELS_ATTENTION_AVX512_VNNI_H_
