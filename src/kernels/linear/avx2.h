// What the 256-bit variants share: loads and stores of the activation's types, the rounding that
// base/floats.h defines, the product's epilogue, and widening. x86-64 only.
#ifndef PARFAIT_KERNELS_LINEAR_AVX2_H_
#define PARFAIT_KERNELS_LINEAR_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/linear/linear.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels::avx2 {
namespace {  // each source has its own copy: the linker may not give one's code to another

inline constexpr unsigned lanes = 8;

inline __m256 load8(DType dtype, const std::byte* at) {
  if (dtype == DType::f32) return _mm256_loadu_ps(reinterpret_cast<const float*>(at));
  const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
  if (dtype == DType::bf16)
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  return _mm256_cvtph_ps(half);
}

inline __m128i to_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
  const __m256i top = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi32(top, top), 0xd8));
}

inline void store8(DType dtype, std::byte* at, __m256 value) {
  if (dtype == DType::f32)
    _mm256_storeu_ps(reinterpret_cast<float*>(at), value);
  else
    _mm_storeu_si128(reinterpret_cast<__m128i*>(at),
                     dtype == DType::bf16
                         ? to_bf16(value)
                         : _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// Elements i .. i + 7 of data, or `count` of them and zeros.
inline __m256 load8(DType dtype, const std::byte* data, std::uint64_t i, std::uint64_t count) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  if (count >= lanes) return load8(dtype, data + i * size);
  std::byte part[32] = {};
  std::memcpy(part, data + i * size, count * size);
  return load8(dtype, part);
}

inline void store8(DType dtype, std::byte* data, std::uint64_t i, std::uint64_t count,
                   __m256 value) {
  const std::uint64_t size = dtype == DType::f32 ? 4 : 2;
  if (count >= lanes) return store8(dtype, data + i * size, value);
  std::byte part[32];
  store8(dtype, part, value);
  std::memcpy(data + i * size, part, count * size);
}

struct Product {
  const PackedWeight& w;
  const QuantizedRows& x;
  const Matrix& y;
};

struct Outputs {
  std::uint64_t n, count;
  __m256 s_w, bias;

  Outputs(const Product& p, std::uint64_t first, std::uint64_t outputs)
      : n(first),
        count(outputs),
        s_w(load8(DType::f32, reinterpret_cast<const std::byte*>(p.w.scales.data()), n, count)),
        bias(p.w.bias.empty()
                 ? _mm256_setzero_ps()
                 : load8(DType::f32, reinterpret_cast<const std::byte*>(p.w.bias.data()), n,
                         count)) {}

  void finish(const Product& p, std::uint64_t m, std::uint32_t offset, __m256i sums) const {
    const auto correction = static_cast<int>(offset * static_cast<std::uint32_t>(p.x.sums[m]));
    const __m256 a = _mm256_cvtepi32_ps(_mm256_sub_epi32(sums, _mm256_set1_epi32(correction)));
    __m256 value = _mm256_mul_ps(a, _mm256_mul_ps(_mm256_set1_ps(p.x.scales[m]), s_w));
    if (!p.w.bias.empty()) value = _mm256_add_ps(value, bias);
    store8(p.y.dtype, static_cast<std::byte*>(p.y.data), m * p.y.stride + n, count, value);
  }
};

// --- Widening: panel.h's layout with two 128-bit pieces a vector ---

inline __m256i load32(const std::byte* at) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at));
}
inline void store32(std::byte* at, __m256i value) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), value);
}

inline __m256i two(const std::byte* low, const std::byte* high) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

// Four vectors with rows 4L + t of 16 columns in piece L, to the vectors of four steps.
inline void store_steps(const __m256i (&rows)[4], std::byte* out) {
  const __m256i u0 = _mm256_unpacklo_epi32(rows[0], rows[1]),
                u1 = _mm256_unpackhi_epi32(rows[0], rows[1]),
                u2 = _mm256_unpacklo_epi32(rows[2], rows[3]),
                u3 = _mm256_unpackhi_epi32(rows[2], rows[3]);
  store32(out, _mm256_unpacklo_epi64(u0, u2));
  store32(out + 64, _mm256_unpackhi_epi64(u0, u2));
  store32(out + 128, _mm256_unpacklo_epi64(u1, u3));
  store32(out + 192, _mm256_unpackhi_epi64(u1, u3));
}

// A panel is read once, while a larger one is written, which hides the stream from the processor.
template <int bytes>
inline void fetch(const std::byte* at) {
  constexpr int ahead = 4096;
#pragma GCC unroll 3
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(at + ahead + i, 0, 3);
}

inline void widen_w4a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 128);
  const std::byte* tables = w.tables.data();
  const __m256i low = _mm256_set1_epi8(15);
  for (std::uint64_t b = 0; b < blocks; ++b, panel += 128, out += 256) {
    fetch<128>(panel);
    const std::uint8_t* s = scales + b / in_group * 16;
    __m256i first[4], second[4];
#pragma GCC unroll 4
    for (int t = 0; t < 4; ++t) {
      const __m256i both = load32(panel + t * 32);
      first[t] = _mm256_shuffle_epi8(two(tables + s[2 * t] * 16, tables + s[2 * t + 1] * 16),
                                     _mm256_and_si256(both, low));
      second[t] = _mm256_shuffle_epi8(two(tables + s[2 * t + 8] * 16, tables + s[2 * t + 9] * 16),
                                      _mm256_and_si256(_mm256_srli_epi16(both, 4), low));
    }
    store_steps(first, out);
    store_steps(second, out + 32);
  }
}

// The tables of two rows are 64 bytes each. A shuffle gives 0 where an index has its top bit set,
// so each quarter is looked up with indices that have it wherever the code lies elsewhere.
inline __m256i look_up(const std::byte* first, const std::byte* second, __m256i codes) {
  const __m256i limit = _mm256_set1_epi8(0x70);
  __m256i found = _mm256_setzero_si256();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m256i quarter = _mm256_xor_si256(codes, _mm256_set1_epi8(static_cast<char>(j << 4)));
    found = _mm256_or_si256(found, _mm256_shuffle_epi8(two(first + 16 * j, second + 16 * j),
                                                       _mm256_adds_epu8(quarter, limit)));
  }
  return found;
}

inline void widen_w6a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 192);
  const std::byte* tables = w.tables.data();
  const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(0x30);
  for (std::uint64_t b = 0; b < blocks; ++b, panel += 192, out += 256) {
    fetch<192>(panel);
    const std::uint8_t* s = scales + b / in_group * 16;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      const __m256i high = load32(panel + 128 + v * 32);
      __m256i rows[4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        const __m256i both = load32(panel + t * 32);
        const __m256i nibbles = _mm256_and_si256(v ? _mm256_srli_epi16(both, 4) : both, low);
        // Pair t of bits to bits 4 and 5.
        const __m256i moved =
            t < 2 ? _mm256_slli_epi16(high, 4 - 2 * t) : _mm256_srli_epi16(high, 2 * t - 4);
        rows[t] = look_up(tables + s[v * 8 + 2 * t] * 64, tables + s[v * 8 + 2 * t + 1] * 64,
                          _mm256_or_si256(nibbles, _mm256_and_si256(moved, pair)));
      }
      store_steps(rows, out + v * 32);
    }
  }
}

}  // namespace
}  // namespace parfait::kernels::avx2

#include "kernels/avx2_end.inc"

#endif  // PARFAIT_KERNELS_LINEAR_AVX2_H_
