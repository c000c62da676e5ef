// Quantising an activation on Arm: rotation, then the absolute maximum, then codes.

#include "kernels/linear/variants.h"

#if defined(__aarch64__)

#include <cmath>

#include "kernels/linear/neon.h"

namespace parfait::kernels {
namespace {

using neon::lanes;

// --- Rotation, as base/hadamard.h defines it: y = t − (d, c, b, a), t = ½·((a + b) + (c + d)) ---

inline float32x4_t half(float32x4_t sum) { return vmulq_f32(sum, vdupq_n_f32(0.5f)); }

// Stride 1: a, b, c, d are neighbours.
inline float32x4_t stage_1(float32x4_t v) {
  const float32x4_t pair = vaddq_f32(v, vrev64q_f32(v));
  const float32x4_t sum = vaddq_f32(pair, vextq_f32(pair, pair, 2));
  const float32x4_t swapped = vrev64q_f32(v);
  return vsubq_f32(half(sum), vextq_f32(swapped, swapped, 2));
}

// A stage of stride 4 or more, in place.
void stage(float* r, std::uint64_t K, std::uint64_t stride) {
  for (std::uint64_t block = 0; block < K; block += 4 * stride) {
    for (float* at = r + block; at < r + block + stride; at += lanes) {
      const float32x4_t a = vld1q_f32(at), b = vld1q_f32(at + stride),
                        c = vld1q_f32(at + 2 * stride), d = vld1q_f32(at + 3 * stride);
      const float32x4_t t = half(vaddq_f32(vaddq_f32(a, b), vaddq_f32(c, d)));
      vst1q_f32(at, vsubq_f32(t, d));
      vst1q_f32(at + stride, vsubq_f32(t, c));
      vst1q_f32(at + 2 * stride, vsubq_f32(t, b));
      vst1q_f32(at + 3 * stride, vsubq_f32(t, a));
    }
  }
}

// The rotated row in r, which has room for whole vectors, and the bits of its largest magnitude. As
// integers, magnitudes order like floats, with infinities and NaN above all numbers.
std::uint32_t rotate(DType dtype, const std::byte* data, std::uint64_t start, std::uint64_t K,
                     std::uint64_t group, float* r) {
  for (std::uint64_t k = 0; k < K; k += lanes) {
    const float32x4_t v = neon::load4(dtype, data, start + k, K - k);
    vst1q_f32(r + k, group >= 4 ? stage_1(v) : v);
  }
  for (std::uint64_t stride = 4; stride < group; stride *= 4) stage(r, K, stride);
  uint32x4_t most = vdupq_n_u32(0);
  for (std::uint64_t k = 0; k < K; k += lanes)
    most = vmaxq_u32(most,
                     vandq_u32(vreinterpretq_u32_f32(vld1q_f32(r + k)), vdupq_n_u32(0x7fffffff)));
  return vmaxvq_u32(most);
}

// --- Quantisation ---

// The codes of one rotated row, padded with zeros to whole vectors; returns their sum.
std::int32_t make_codes(const float* r, std::uint64_t K, float s_x, Activation mode, std::byte* c) {
  const int32x4_t lo = vdupq_n_s32(mode == Activation::int8 ? -128 : -7);
  const int32x4_t hi = vdupq_n_s32(mode == Activation::int8 ? 127 : 7);
  const float32x4_t divisor = vdupq_n_f32(s_x);
  int32x4_t sum = vdupq_n_s32(0);
  for (std::uint64_t k = 0; k < K; k += lanes) {
    const int32x4_t rounded = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(r + k), divisor));
    const int32x4_t code = vmaxq_s32(vminq_s32(rounded, hi), lo);
    sum = vaddq_s32(sum, code);
    const int16x4_t words = vmovn_s32(code);
    const int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    std::memcpy(c + k, &bytes, lanes);
  }
  return vaddvq_s32(sum);
}

#include "kernels/linear/quantize_rows.inc"

}  // namespace

const QuantizeKernel quantize_neon_dotprod = {"quantize.neon_dotprod", Isa::neon_dotprod, quantize};

}  // namespace parfait::kernels

#endif  // __aarch64__
