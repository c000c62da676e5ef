// Packing of int8 and int4 panels on AVX-512: sixteen rows of 64 bytes are transposed in registers,
// so that every line is read once and written once, past the caches. x86-64 only.
#ifndef PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_
#define PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear/panel.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels::avx512 {
namespace {  // each source has its own copy: the linker may not give one's code to another

// 16 × 16 words.
inline void transpose(__m512i (&r)[16]) {
  __m512i t[16];
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {  // words of four rows, in each 128-bit piece
    const __m512i u0 = _mm512_unpacklo_epi32(r[i], r[i + 1]),
                  u1 = _mm512_unpackhi_epi32(r[i], r[i + 1]),
                  u2 = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]),
                  u3 = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(u0, u2);
    t[i + 1] = _mm512_unpackhi_epi64(u0, u2);
    t[i + 2] = _mm512_unpacklo_epi64(u1, u3);
    t[i + 3] = _mm512_unpackhi_epi64(u1, u3);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {  // pieces of four quadruples of rows
    const __m512i u0 = _mm512_shuffle_i64x2(t[i], t[i + 4], 0x44),
                  u1 = _mm512_shuffle_i64x2(t[i], t[i + 4], 0xee),
                  u2 = _mm512_shuffle_i64x2(t[i + 8], t[i + 12], 0x44),
                  u3 = _mm512_shuffle_i64x2(t[i + 8], t[i + 12], 0xee);
    r[i] = _mm512_shuffle_i64x2(u0, u2, 0x88);
    r[i + 4] = _mm512_shuffle_i64x2(u0, u2, 0xdd);
    r[i + 8] = _mm512_shuffle_i64x2(u1, u3, 0x88);
    r[i + 12] = _mm512_shuffle_i64x2(u1, u3, 0xdd);
  }
}

struct Int8Change {
  static __m512i apply(__m512i codes) {
    return _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  }
};

// Four nibbles of each word to its four bytes.
inline __m512i spread(__m512i nibbles) {
  const __m512i two = _mm512_and_si512(_mm512_or_si512(nibbles, _mm512_slli_epi32(nibbles, 8)),
                                       _mm512_set1_epi32(0x00ff00ff));
  return _mm512_and_si512(_mm512_or_si512(two, _mm512_slli_epi32(two, 4)),
                          _mm512_set1_epi32(0x0f0f0f0f));
}

// Bytes hold columns (0,1) (2,3) (4,5) (6,7); wanted are (0,4) (1,5) (2,6) (3,7), plus 8.
struct Int4Change {
  static __m512i apply(__m512i codes) {
    const __m512i first = spread(_mm512_and_si512(codes, _mm512_set1_epi32(0xffff)));
    const __m512i second = spread(_mm512_srli_epi32(codes, 16));
    return _mm512_xor_si512(_mm512_or_si512(first, _mm512_slli_epi32(second, 4)),
                            _mm512_set1_epi8(static_cast<char>(0x88)));
  }
};

// Rows of row_bytes bytes, whose words become steps.
template <class Change>
void pack_steps(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::uint64_t row_bytes,
                std::uint64_t panel_size, std::byte* out) {
  using P = Panel<16>;
  constexpr std::uint64_t line = 64;
  for (std::uint64_t first = n0; first < n1; first += P::rows) {
    std::byte* panel = out + first / P::rows * panel_size;
    for (std::uint64_t at = 0; at < row_bytes; at += line) {
      const std::uint64_t left = row_bytes - at;
      const __mmask64 here = left >= line ? ~__mmask64{0} : (__mmask64{1} << left) - 1;
      for (std::uint64_t v = 0; v < 2; ++v) {
        __m512i rows[16];
#pragma GCC unroll 16
        for (std::uint64_t i = 0; i < 16; ++i) {
          const std::uint64_t n = first + v * 16 + i;
          const __m512i codes = n < n1 ? _mm512_maskz_loadu_epi8(here, w.codes + n * row_bytes + at)
                                       : _mm512_setzero_si512();
          rows[i] = Change::apply(codes);
        }
        transpose(rows);
#pragma GCC unroll 16
        for (std::uint64_t unit = 0; unit < 16; ++unit) {
          const std::uint64_t to = (at / 4 + unit) * P::step + v * 64;
          if (to >= panel_size) break;
          _mm512_stream_si512(reinterpret_cast<__m512i*>(panel + to), rows[unit]);
        }
      }
    }
  }
  _mm_sfence();
}

}  // namespace
}  // namespace parfait::kernels::avx512

#include "kernels/avx512_vnni_end.inc"

#endif  // PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_
