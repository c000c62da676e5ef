// The integer product on AVX-512 VNNI.
//
// vpdpbusd multiplies unsigned by signed bytes, four at a time, and adds them to int32 without
// saturation. The weight is the unsigned operand: int8 codes plus 128, int4 codes plus 8. Then
//   Σ_k c·(w + offset) = a + offset · Σ_k c,    so    a = sum − offset · sums[m],
// exactly, since int32 arithmetic wraps. The activation is the signed operand: four codes of a row,
// broadcast.
//
// A panel of the widest real layer (K = 14,336) is 0.46 MB in int8 and stays in the second-level
// cache while rows of x pass by. The register tile is 12 rows of x by one panel: 24 sums, 2
// weights, 1 activation.

#include "kernels/linear/panel.h"
#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/linear/avx512_vnni.h"
#include "kernels/linear/avx512_vnni_pack.h"
#include "kernels/linear/widen.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

constexpr unsigned lanes = 16;
constexpr int tile_rows = 12, most_sums = 24;

struct Product {
  const PackedWeight& w;
  const QuantizedRows& x;
  const Matrix& y;
};

using Sums = __m512i;
using Codes = __m512i;

inline Sums zero_sums() { return _mm512_setzero_si512(); }
inline Sums join(Sums a, Sums b) { return _mm512_add_epi32(a, b); }

inline Codes broadcast(const std::byte* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}

struct Int8Weights {
  static constexpr std::uint32_t offset = 128;
  __m512i codes;
  static Int8Weights load(const std::byte* at) { return {_mm512_load_si512(at)}; }
};

struct Int4Weights {
  static constexpr std::uint32_t offset = 8;
  __m512i codes;
  static Int4Weights load(const std::byte* at, int step) {
    const __m512i both = _mm512_load_si512(at);
    return {_mm512_and_si512(step ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15))};
  }
};

// In assembly, because GCC 12 copies the sums of the intrinsic to and fro.
template <class Weights>
inline void add_product(Sums& sums, const Weights& w, Codes c) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w.codes), "v"(c));
}

struct Outputs {
  __mmask16 mask;
  __m512 s_w, bias;
  std::byte* y;

  Outputs(const Product& p, std::uint64_t n, std::uint64_t count)
      : mask(avx512::tail_mask(count)),
        s_w(_mm512_maskz_loadu_ps(mask, p.w.scales.data() + n)),
        bias(p.w.bias.empty() ? _mm512_setzero_ps()
                              : _mm512_maskz_loadu_ps(mask, p.w.bias.data() + n)),
        y(static_cast<std::byte*>(p.y.data) + n * (p.y.dtype == DType::f32 ? 4 : 2)) {}

  void finish(const Product& p, std::uint64_t m, std::uint32_t offset, Sums sums) const {
    const auto correction = static_cast<int>(offset * static_cast<std::uint32_t>(p.x.sums[m]));
    const __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_set1_epi32(correction)));
    __m512 value = _mm512_mul_ps(a, _mm512_mul_ps(_mm512_set1_ps(p.x.scales[m]), s_w));
    if (!p.w.bias.empty()) value = _mm512_add_ps(value, bias);
    avx512::store16(p.y.dtype, y, m * p.y.stride, mask, value);
  }
};

// --- Widening ---

inline __m128i table_entry(const std::byte* tables, std::uint64_t scale) {
  return _mm_load_si128(reinterpret_cast<const __m128i*>(tables + scale * 16));
}

// Entries of 16 bytes of four rows' tables, one in each 128-bit piece.
inline __m512i gather_tables(const std::byte* tables, const std::uint8_t* scales) {
  __m512i four = _mm512_castsi128_si512(table_entry(tables, scales[0]));
  four = _mm512_mask_broadcast_i32x4(four, 0x00f0, table_entry(tables, scales[1]));
  four = _mm512_mask_broadcast_i32x4(four, 0x0f00, table_entry(tables, scales[2]));
  return _mm512_mask_broadcast_i32x4(four, 0xf000, table_entry(tables, scales[3]));
}

// Four vectors with rows 4L + t of 16 columns in piece L, to the vectors of four steps.
inline void store_steps(const __m512i (&rows)[4], std::byte* out) {
  const __m512i u0 = _mm512_unpacklo_epi32(rows[0], rows[1]),
                u1 = _mm512_unpackhi_epi32(rows[0], rows[1]),
                u2 = _mm512_unpacklo_epi32(rows[2], rows[3]),
                u3 = _mm512_unpackhi_epi32(rows[2], rows[3]);
  _mm512_store_si512(out, _mm512_unpacklo_epi64(u0, u2));
  _mm512_store_si512(out + 128, _mm512_unpackhi_epi64(u0, u2));
  _mm512_store_si512(out + 256, _mm512_unpacklo_epi64(u1, u3));
  _mm512_store_si512(out + 384, _mm512_unpackhi_epi64(u1, u3));
}

// A panel is read once, while a larger one is written, which hides the stream from the processor.
template <int bytes>
inline void fetch(const std::byte* at) {
  constexpr int ahead = 4096;
#pragma GCC unroll 6
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(at + ahead + i, 0, 3);
}

void widen_w4a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 256);
  const __m512i low = _mm512_set1_epi8(15);
  for (std::uint64_t b = 0; b < blocks; scales += 32) {
    __m512i tables[2][4];
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v)
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t)
        tables[v][t] = gather_tables(w.tables.data(), scales + v * 16 + t * 4);
    for (const std::uint64_t end = b + in_group; b < end; ++b, panel += 256, out += 512) {
      fetch<256>(panel);
      __m512i first[4], second[4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) {
        const __m512i both = _mm512_load_si512(panel + t * 64);
        first[t] = _mm512_shuffle_epi8(tables[0][t], _mm512_and_si512(both, low));
        second[t] =
            _mm512_shuffle_epi8(tables[1][t], _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
      }
      store_steps(first, out);
      store_steps(second, out + 64);
    }
  }
}

// The tables of four rows, 64 bytes each: entry j holds codes 16j .. 16j + 15 of all four rows.
inline void gather_wide_tables(const std::byte* tables, const std::uint8_t* scales,
                               __m512i (&entries)[4]) {
  const __m512i a = _mm512_load_si512(tables + scales[0] * 64),
                b = _mm512_load_si512(tables + scales[1] * 64),
                c = _mm512_load_si512(tables + scales[2] * 64),
                d = _mm512_load_si512(tables + scales[3] * 64);
  const __m512i ab_low = _mm512_shuffle_i64x2(a, b, 0x44),
                ab_high = _mm512_shuffle_i64x2(a, b, 0xee),
                cd_low = _mm512_shuffle_i64x2(c, d, 0x44),
                cd_high = _mm512_shuffle_i64x2(c, d, 0xee);
  entries[0] = _mm512_shuffle_i64x2(ab_low, cd_low, 0x88);
  entries[1] = _mm512_shuffle_i64x2(ab_low, cd_low, 0xdd);
  entries[2] = _mm512_shuffle_i64x2(ab_high, cd_high, 0x88);
  entries[3] = _mm512_shuffle_i64x2(ab_high, cd_high, 0xdd);
}

// A shuffle gives 0 where an index has its top bit set, so each quarter of the table is looked up
// with indices that have it wherever the code lies in another quarter.
inline __m512i look_up(const __m512i (&entries)[4], __m512i codes) {
  const __m512i limit = _mm512_set1_epi8(0x70);
  __m512i found = _mm512_shuffle_epi8(entries[0], _mm512_adds_epu8(codes, limit));
#pragma GCC unroll 3
  for (int j = 1; j < 4; ++j) {
    const __m512i quarter = _mm512_xor_si512(codes, _mm512_set1_epi8(static_cast<char>(j << 4)));
    found =
        _mm512_or_si512(found, _mm512_shuffle_epi8(entries[j], _mm512_adds_epu8(quarter, limit)));
  }
  return found;
}

void widen_w6a8(const PackedWeight& w, const std::byte* panel, std::byte* out) {
  const std::uint64_t blocks = w.columns / 16, in_group = w.scale_group / 16;
  const auto* scales = reinterpret_cast<const std::uint8_t*>(panel + blocks * 384);
  const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
  for (std::uint64_t g = 0; g < blocks / in_group; ++g, scales += 32) {
    const std::byte* in_first = panel + g * in_group * 384;
    for (std::uint64_t b = 0; b < in_group; ++b) fetch<384>(in_first + b * 384);
    std::byte* out_first = out + g * in_group * 512;
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      __m512i entries[4][4];
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t)
        gather_wide_tables(w.tables.data(), scales + v * 16 + t * 4, entries[t]);
      const std::byte* in = in_first;
      std::byte* to = out_first + v * 64;
      for (std::uint64_t b = 0; b < in_group; ++b, in += 384, to += 512) {
        const __m512i high = _mm512_load_si512(in + 256 + v * 64);
        __m512i rows[4];
#pragma GCC unroll 4
        for (int t = 0; t < 4; ++t) {
          const __m512i both = _mm512_load_si512(in + t * 64);
          const __m512i nibbles = _mm512_and_si512(v ? _mm512_srli_epi16(both, 4) : both, low);
          // Pair t of bits to bits 4 and 5.
          const __m512i moved =
              t < 2 ? _mm512_slli_epi16(high, 4 - 2 * t) : _mm512_srli_epi16(high, 2 * t - 4);
          rows[t] = look_up(entries[t], _mm512_or_si512(nibbles, _mm512_and_si512(moved, pair)));
        }
        store_steps(rows, to);
      }
    }
  }
}

using P = Panel<lanes>;
using avx512::Int4Change;
using avx512::Int8Change;
using avx512::pack_codes;
using avx512::pack_steps;
// In this order.
#include "kernels/linear/panel_pack.inc"
// then
#include "kernels/linear/panel_views.inc"
// then
#include "kernels/linear/panel_tile.inc"
// then
#include "kernels/linear/panel_multiply.inc"

}  // namespace

const LinearKernel int8_avx512_vnni =
    linear_kernel<WeightCode::int8>("int8.avx512_vnni", Isa::avx512_vnni);
const LinearKernel int4_avx512_vnni =
    linear_kernel<WeightCode::int4>("int4.avx512_vnni", Isa::avx512_vnni);
const LinearKernel w4a8_avx512_vnni =
    linear_kernel<WeightCode::w4a8>("w4a8.avx512_vnni", Isa::avx512_vnni);
const LinearKernel w6a8_avx512_vnni =
    linear_kernel<WeightCode::w6a8>("w6a8.avx512_vnni", Isa::avx512_vnni);

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
