// What the Arm variants share: loads and stores of the activation's types, the rounding that
// base/floats.h defines, the product's epilogue, and widening. Vectors of 128 bits; aarch64 only.
#ifndef PARFAIT_KERNELS_LINEAR_NEON_H_
#define PARFAIT_KERNELS_LINEAR_NEON_H_

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/linear/linear.h"

namespace parfait::kernels::neon {
namespace {

inline constexpr unsigned lanes = 4;

inline float32x4_t load4(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) {
    float32x4_t values;
    std::memcpy(&values, at, sizeof(values));
    return values;
  }
  uint16x4_t half;
  std::memcpy(&half, at, sizeof(half));
  if (dtype == DType::bf16) return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
  return vcvt_f32_f16(vreinterpret_f16_u16(half));
}

inline uint16x4_t to_bf16(float32x4_t value) {
  const uint32x4_t bits = vreinterpretq_u32_f32(value);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(value, value), rounded, quiet), 16);
}

inline void store4(DType dtype, std::byte* at, float32x4_t value) {
  if (dtype == DType::f32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16x4_t half =
      dtype == DType::bf16 ? to_bf16(value) : vreinterpret_u16_f16(vcvt_f16_f32(value));
  std::memcpy(at, &half, sizeof(half));
}

// Elements i .. i + 3 of data, or `count` of them and zeros.
inline float32x4_t load4(DType dtype, const std::byte* data, std::uint64_t i, std::uint64_t count) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  if (count >= lanes) return load4(dtype, data + i * size);
  std::byte part[16] = {};
  std::memcpy(part, data + i * size, count * size);
  return load4(dtype, part);
}

inline void store4(DType dtype, std::byte* data, std::uint64_t i, std::uint64_t count,
                   float32x4_t value) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  if (count >= lanes) return store4(dtype, data + i * size, value);
  std::byte part[16];
  store4(dtype, part, value);
  std::memcpy(data + i * size, part, count * size);
}

inline int8x16_t load16(const std::byte* at) {
  return vld1q_s8(reinterpret_cast<const std::int8_t*>(at));
}

struct Product {
  const PackedWeight& w;
  const QuantizedRows& x;
  const Matrix& y;
};

struct Outputs {
  std::uint64_t n, count;
  float32x4_t s_w, bias;

  Outputs(const Product& p, std::uint64_t first, std::uint64_t outputs)
      : n(first),
        count(outputs),
        s_w(load4(DType::f32, reinterpret_cast<const std::byte*>(p.w.scales.data()), n, count)),
        bias(p.w.bias.empty()
                 ? vdupq_n_f32(0)
                 : load4(DType::f32, reinterpret_cast<const std::byte*>(p.w.bias.data()), n,
                         count)) {}

  void finish(const Product& p, std::uint64_t m, std::uint32_t offset, int32x4_t sums) const {
    const auto correction = static_cast<int>(offset * static_cast<std::uint32_t>(p.x.sums[m]));
    const float32x4_t a = vcvtq_f32_s32(vsubq_s32(sums, vdupq_n_s32(correction)));
    float32x4_t value = vmulq_f32(a, vmulq_f32(vdupq_n_f32(p.x.scales[m]), s_w));
    if (!p.w.bias.empty()) value = vaddq_f32(value, bias);
    store4(p.y.dtype, static_cast<std::byte*>(p.y.data), m * p.y.stride + n, count, value);
  }
};

struct Int8Weights {
  static constexpr std::uint32_t offset = 0;
  int8x16_t codes;
  static Int8Weights load(const std::byte* at) { return {load16(at)}; }
};

struct Int4Weights {
  static constexpr std::uint32_t offset = 8;
  int8x16_t codes;
  static Int4Weights load(const std::byte* at, int step) {
    const uint8x16_t both = vreinterpretq_u8_s8(load16(at));
    return {vreinterpretq_s8_u8(step ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15)))};
  }
};

// --- Widening: panel.h's layout with one 128-bit piece a vector ---

// Four rows of 16 columns, to the vectors of four steps.
inline void store_steps(const uint8x16_t (&rows)[4], std::byte* out) {
  const uint32x4_t a = vreinterpretq_u32_u8(rows[0]), b = vreinterpretq_u32_u8(rows[1]),
                   c = vreinterpretq_u32_u8(rows[2]), d = vreinterpretq_u32_u8(rows[3]);
  const uint32x4_t ab_even = vtrn1q_u32(a, b), ab_odd = vtrn2q_u32(a, b),
                   cd_even = vtrn1q_u32(c, d), cd_odd = vtrn2q_u32(c, d);
  const auto join_low = [](uint32x4_t p, uint32x4_t q) {
    return vreinterpretq_u8_u64(vtrn1q_u64(vreinterpretq_u64_u32(p), vreinterpretq_u64_u32(q)));
  };
  const auto join_high = [](uint32x4_t p, uint32x4_t q) {
    return vreinterpretq_u8_u64(vtrn2q_u64(vreinterpretq_u64_u32(p), vreinterpretq_u64_u32(q)));
  };
  auto* to = reinterpret_cast<std::uint8_t*>(out);
  vst1q_u8(to, join_low(ab_even, cd_even));
  vst1q_u8(to + 32, join_low(ab_odd, cd_odd));
  vst1q_u8(to + 64, join_high(ab_even, cd_even));
  vst1q_u8(to + 96, join_high(ab_odd, cd_odd));
}

inline uint8x16_t load_u8(const std::byte* at) {
  return vld1q_u8(reinterpret_cast<const std::uint8_t*>(at));
}

inline void widen_w4a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 64);
  const std::byte* tables = w.tables.data();
  for (std::uint64_t b = 0; b < blocks; ++b, panel += 64, out += 128) {
    const std::uint8_t* s = scales + b / in_group * 8;
    uint8x16_t first[4], second[4];
    for (int t = 0; t < 4; ++t) {
      const uint8x16_t both = load_u8(panel + t * 16);
      first[t] = vqtbl1q_u8(load_u8(tables + s[t] * 16), vandq_u8(both, vdupq_n_u8(15)));
      second[t] = vqtbl1q_u8(load_u8(tables + s[t + 4] * 16), vshrq_n_u8(both, 4));
    }
    store_steps(first, out);
    store_steps(second, out + 16);
  }
}

inline void widen_w6a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 96);
  const auto* tables = reinterpret_cast<const std::uint8_t*>(w.tables.data());
  for (std::uint64_t b = 0; b < blocks; ++b, panel += 96, out += 128) {
    const std::uint8_t* s = scales + b / in_group * 8;
    for (int v = 0; v < 2; ++v) {
      uint8x16_t high = load_u8(panel + 64 + v * 16);
      uint8x16_t rows[4];
      for (int t = 0; t < 4; ++t) {
        const uint8x16_t both = load_u8(panel + t * 16);
        const uint8x16_t nibbles = v ? vshrq_n_u8(both, 4) : vandq_u8(both, vdupq_n_u8(15));
        const uint8x16_t codes = vorrq_u8(nibbles, vshlq_n_u8(vandq_u8(high, vdupq_n_u8(3)), 4));
        rows[t] = vqtbl4q_u8(vld1q_u8_x4(tables + s[v * 4 + t] * 64), codes);
        high = vshrq_n_u8(high, 2);
      }
      store_steps(rows, out + v * 16);
    }
  }
}

}  // namespace
}  // namespace parfait::kernels::neon

#endif  // PARFAIT_KERNELS_LINEAR_NEON_H_
