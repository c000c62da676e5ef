// Packing on AVX-512: sixteen rows of 64 bytes are transposed in registers, so that every line is
// read once and written once, past the caches. x86-64 only.
#ifndef PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_
#define PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/linear/panel.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels::avx512 {
namespace {  // each source has its own copy: the linker may not give one's code to another

// How far behind the bytes in use each row is fetched: there are more rows at once than streams
// that the processor follows by itself. A fetch past the end of a mapping does nothing.
constexpr std::uint64_t ahead = 256;

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
          if (n < n1) _mm_prefetch(w.codes + n * row_bytes + at + ahead, _MM_HINT_T0);
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

// 64 bytes from a row, or zeros: past the row's end, and where there is no row.
inline __m512i load_line(const std::byte* row, std::uint64_t at, std::uint64_t end) {
  if (!row || at >= end) return _mm512_setzero_si512();
  _mm_prefetch(row + at + ahead, _MM_HINT_T0);
  const std::uint64_t left = end - at;
  return left >= 64 ? _mm512_loadu_si512(row + at)
                    : _mm512_maskz_loadu_epi8((__mmask64{1} << left) - 1, row + at);
}

// a where the bit of the mask is set, b elsewhere.
inline __m512i blend_bits(__m512i mask, __m512i a, __m512i b) {
  return _mm512_ternarylogic_epi64(mask, a, b, 0xca);
}

// 4 × 4 pieces of 128 bits.
inline void transpose_pieces(__m512i (&r)[4]) {
  const __m512i u0 = _mm512_shuffle_i64x2(r[0], r[1], 0x44),
                u1 = _mm512_shuffle_i64x2(r[0], r[1], 0xee),
                u2 = _mm512_shuffle_i64x2(r[2], r[3], 0x44),
                u3 = _mm512_shuffle_i64x2(r[2], r[3], 0xee);
  r[0] = _mm512_shuffle_i64x2(u0, u2, 0x88);
  r[1] = _mm512_shuffle_i64x2(u0, u2, 0xdd);
  r[2] = _mm512_shuffle_i64x2(u1, u3, 0x88);
  r[3] = _mm512_shuffle_i64x2(u1, u3, 0xdd);
}

// The codes of one panel of w4a8, and the low four bits of one of w6a8: eight blocks at a time, of
// which each row gives one line.
template <std::uint64_t block_bytes, class Row>
void pack_nibbles(const Row& row, std::uint64_t blocks, std::uint64_t end, std::byte* panel) {
  const __m512i low = _mm512_set1_epi8(0x0f);
  for (std::uint64_t b0 = 0; b0 < blocks; b0 += 8) {
    for (std::uint64_t t = 0; t < 4; ++t) {
      __m512i even[4], odd[4];  // of blocks b0, b0 + 2, … and b0 + 1, b0 + 3, …
#pragma GCC unroll 4
      for (std::uint64_t L = 0; L < 4; ++L) {
        const __m512i a = load_line(row(4 * L + t), b0 * 8, end),
                      b = load_line(row(16 + 4 * L + t), b0 * 8, end);
        const __m512i first = blend_bits(low, a, _mm512_slli_epi16(b, 4)),
                      second = blend_bits(low, _mm512_srli_epi16(a, 4), b);
        even[L] = _mm512_unpacklo_epi8(first, second);
        odd[L] = _mm512_unpackhi_epi8(first, second);
      }
      transpose_pieces(even);
      transpose_pieces(odd);
      std::byte* to = panel + b0 * block_bytes + t * 64;
#pragma GCC unroll 8
      for (std::uint64_t i = 0; i < 8; ++i)
        if (b0 + i < blocks)
          _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i * block_bytes),
                              i % 2 ? odd[i / 2] : even[i / 2]);
    }
  }
}

// The high two bits of one panel of w6a8: sixteen blocks at a time.
template <std::uint64_t block_bytes, class Row>
void pack_pairs(const Row& row, std::uint64_t blocks, std::uint64_t start, std::uint64_t end,
                std::byte* panel) {
  const __m512i nibble = _mm512_set1_epi8(0x0f), pair = _mm512_set1_epi8(0x33);
  for (std::uint64_t b0 = 0; b0 < blocks; b0 += 16) {
    for (std::uint64_t v = 0; v < 2; ++v) {
      __m512i out[4][4];  // [block modulo 4][L]
#pragma GCC unroll 4
      for (std::uint64_t L = 0; L < 4; ++L) {
        __m512i r[4];
#pragma GCC unroll 4
        for (std::uint64_t i = 0; i < 4; ++i)
          r[i] = load_line(row(v * 16 + 4 * L + i), start + b0 * 4, end);
        // Four rows of four pairs, a byte each, become four columns: first nibbles, then pairs.
        const __m512i r02 = blend_bits(nibble, r[0], _mm512_slli_epi16(r[2], 4)),
                      r13 = blend_bits(nibble, r[1], _mm512_slli_epi16(r[3], 4)),
                      s02 = blend_bits(nibble, _mm512_srli_epi16(r[0], 4), r[2]),
                      s13 = blend_bits(nibble, _mm512_srli_epi16(r[1], 4), r[3]);
        const __m512i p0 = blend_bits(pair, r02, _mm512_slli_epi16(r13, 2)),
                      p1 = blend_bits(pair, _mm512_srli_epi16(r02, 2), r13),
                      p2 = blend_bits(pair, s02, _mm512_slli_epi16(s13, 2)),
                      p3 = blend_bits(pair, _mm512_srli_epi16(s02, 2), s13);
        const __m512i l01 = _mm512_unpacklo_epi8(p0, p1), h01 = _mm512_unpackhi_epi8(p0, p1),
                      l23 = _mm512_unpacklo_epi8(p2, p3), h23 = _mm512_unpackhi_epi8(p2, p3);
        out[0][L] = _mm512_unpacklo_epi16(l01, l23);
        out[1][L] = _mm512_unpackhi_epi16(l01, l23);
        out[2][L] = _mm512_unpacklo_epi16(h01, h23);
        out[3][L] = _mm512_unpackhi_epi16(h01, h23);
      }
      std::byte* to = panel + b0 * block_bytes + 256 + v * 64;
#pragma GCC unroll 4
      for (std::uint64_t x = 0; x < 4; ++x) {
        transpose_pieces(out[x]);
#pragma GCC unroll 4
        for (std::uint64_t i = 0; i < 4; ++i)
          if (b0 + 4 * i + x < blocks)
            _mm512_stream_si512(reinterpret_cast<__m512i*>(to + (4 * i + x) * block_bytes),
                                out[x][i]);
      }
    }
  }
}

// The codes of the panel of rows first, …, of which those from n1 on are zeros.
template <WeightCode code>
void pack_codes(const WeightView& w, std::uint64_t first, std::uint64_t n1, std::byte* panel) {
  using P = Panel<16>;
  constexpr std::uint64_t block_bytes = code == WeightCode::w4a8 ? P::w4a8_block : P::w6a8_block;
  const std::uint64_t row_bytes = kernels::row_bytes(code, w.columns);
  const auto row = [&](std::uint64_t i) {
    return first + i < n1 ? w.codes + (first + i) * row_bytes : nullptr;
  };
  const std::uint64_t blocks = P::blocks(w.columns), half = w.columns / 2;
  pack_nibbles<block_bytes>(row, blocks, half, panel);
  if constexpr (code == WeightCode::w6a8)
    pack_pairs<block_bytes>(row, blocks, half, row_bytes, panel);
  _mm_sfence();
}

}  // namespace
}  // namespace parfait::kernels::avx512

#include "kernels/avx512_vnni_end.inc"

#endif  // PARFAIT_KERNELS_LINEAR_AVX512_VNNI_PACK_H_
