// The integer product on AVX-512 VNNI.
//
// vpdpbusd multiplies unsigned by signed bytes, four at a time, and adds them to int32 without
// saturation. The weight is the unsigned operand: int8 codes plus 128, int4 codes plus 8. Then
//   Σ_k c·(w + offset) = a + offset · Σ_k c,    so    a = sum − offset · sums[m],
// exactly, since int32 arithmetic wraps. The activation is the signed operand: four codes of a row,
// broadcast.
//
// Packed weights are panels of 32 rows. A panel is a run of steps of 4 columns; a step is 32 rows
// × 4 bytes, two vectors. int8: columns are rounded up to a block of 16. int4: two steps share
// their bytes, the first in the low nibbles. A panel of the widest real layer (K = 14,336) is
// 0.46 MB in int8 and stays in the second-level cache while rows of x pass by. The register tile is
// 12 rows of x by one panel: 24 sums, 2 weights, 1 activation.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/linear/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx512::lanes;

constexpr std::uint64_t panel_rows = 32;
constexpr std::uint64_t block = 16;                   // columns, 4 steps: the unit of the main loop
constexpr std::uint64_t step_bytes = panel_rows * 4;  // of one vector pair
constexpr int vectors = 2;                            // that hold one column of a panel's sums
constexpr int tile_rows = 12;

constexpr std::uint64_t up(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b * b; }
constexpr std::uint64_t least(std::uint64_t a, std::uint64_t b) { return a < b ? a : b; }

// --- Packing ---

std::uint64_t packed_int8(std::uint64_t rows, std::uint64_t columns) {
  return up(rows, panel_rows) * up(columns, block);
}
std::uint64_t packed_int4(std::uint64_t rows, std::uint64_t columns) {
  return up(rows, panel_rows) * (columns / 2);
}

// Calls pack(row, panel, from, to) for pieces of rows, so that few lines of the panel are written
// at a time. from and to count 4-byte units of a packed row.
template <class Pack>
void pack_panels(std::uint64_t n0, std::uint64_t n1, std::uint64_t units, std::byte* out,
                 Pack pack) {
  constexpr std::uint64_t piece = 16;
  for (std::uint64_t first = n0; first < n1; first += panel_rows)
    for (std::uint64_t unit = 0; unit < units; unit += piece)
      for (std::uint64_t n = first; n < least(first + panel_rows, n1); ++n)
        pack(n, out + first * units * 4 + (n - first) * 4, unit, least(unit + piece, units));
}

void pack_int8(const Int8Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t whole = w.columns / 4, units = up(w.columns, block) / 4;
  pack_panels(n0, n1, units, out,
              [&](std::uint64_t n, std::byte* to, std::uint64_t unit, std::uint64_t end) {
                const std::byte* row = w.codes + n * Int8Weight::row_bytes(w.columns);
                for (; unit < end; ++unit) {
                  std::uint32_t four = 0;
                  if (unit < whole)
                    std::memcpy(&four, row + unit * 4, 4);
                  else if (unit == whole)
                    std::memcpy(&four, row + unit * 4, w.columns % 4);
                  four ^= 0x80808080u;
                  std::memcpy(to + unit * step_bytes, &four, 4);
                }
              });
}

// Four nibbles, one to a byte.
inline std::uint32_t spread(std::uint32_t nibbles) {
  nibbles = (nibbles | nibbles << 8) & 0x00ff00ffu;
  return (nibbles | nibbles << 4) & 0x0f0f0f0fu;
}

void pack_int4(const Int4Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  pack_panels(n0, n1, w.columns / 8, out,
              [&](std::uint64_t n, std::byte* to, std::uint64_t unit, std::uint64_t end) {
                const std::byte* row = w.codes + n * Int4Weight::row_bytes(w.columns);
                for (; unit < end; ++unit) {
                  // Bytes hold columns (0,1) (2,3) (4,5) (6,7); wanted are (0,4) (1,5) (2,6) (3,7).
                  std::uint32_t eight;
                  std::memcpy(&eight, row + unit * 4, 4);
                  const std::uint32_t codes = spread(eight & 0xffffu) | spread(eight >> 16) << 4;
                  const std::uint32_t raised = codes ^ 0x88888888u;
                  std::memcpy(to + unit * step_bytes, &raised, 4);
                }
              });
}

// --- Multiplication ---

struct Product {
  const PackedWeight& w;
  const QuantizedRows& x;
  const Matrix& y;
};

struct Int8Codes {
  static constexpr std::uint32_t offset = 128;
  static constexpr std::uint64_t block_bytes = 4 * step_bytes;
  static __m512i load(const std::byte* panel, int step, int vector) {
    return _mm512_load_si512(panel + step * static_cast<int>(step_bytes) + vector * 64);
  }
};

struct Int4Codes {
  static constexpr std::uint32_t offset = 8;
  static constexpr std::uint64_t block_bytes = 2 * step_bytes;
  static __m512i load(const std::byte* panel, int step, int vector) {
    const __m512i both =
        _mm512_load_si512(panel + step / 2 * static_cast<int>(step_bytes) + vector * 64);
    return _mm512_and_si512(step % 2 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
  }
};

// Four codes of a row in every lane.
inline __m512i broadcast(const std::byte* codes) {
  std::int32_t four;
  std::memcpy(&four, codes, 4);
  return _mm512_set1_epi32(four);
}

// sums += w · c. In assembly, because GCC 12 copies the sums of the intrinsic to and fro.
inline void add_product(__m512i& sums, __m512i w, __m512i c) {
  __asm__("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(c));
}

// Scales, bias and rounding of sixteen sums.
inline void finish(const Product& p, std::uint64_t m, std::uint64_t n, std::uint64_t count,
                   std::uint32_t offset, __m512i sums) {
  const __mmask16 mask = avx512::tail_mask(count);
  const auto correction = static_cast<int>(offset * static_cast<std::uint32_t>(p.x.sums[m]));
  const __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums, _mm512_set1_epi32(correction)));
  const __m512 s_w = _mm512_maskz_loadu_ps(mask, p.w.scales.data() + n);
  __m512 value = _mm512_mul_ps(a, _mm512_mul_ps(_mm512_set1_ps(p.x.scales[m]), s_w));
  if (!p.w.bias.empty())
    value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, p.w.bias.data() + n));
  avx512::store16(p.y.dtype, static_cast<std::byte*>(p.y.data), m * p.y.stride + n, mask, value);
}

// y[m .. m + rows, n .. n1) of one panel. Few rows get several sets of sums, over steps modulo
// their number, so that enough sums are on their way at once.
template <class Codes, int rows>
void tile(const Product& p, std::uint64_t m, std::uint64_t n, std::uint64_t n1) {
  constexpr int sets = rows <= 3 ? 4 : rows <= 6 ? 2 : 1;
  const std::uint64_t blocks = (p.w.columns + block - 1) / block, stride = p.x.stride;
  const std::byte* panel = p.w.codes.data() + n / panel_rows * blocks * Codes::block_bytes;
  // Every third row has its own pointer; the others are reached from it.
  const std::byte* codes[(rows + 2) / 3];
  for (int i = 0; i < rows; i += 3)
    codes[i / 3] = p.x.codes.data() + (m + static_cast<std::uint64_t>(i)) * stride;
  __m512i sums[sets][rows][vectors];
#pragma GCC unroll 4
  for (int s = 0; s < sets; ++s)
#pragma GCC unroll 12
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) sums[s][i][v] = _mm512_setzero_si512();

  for (std::uint64_t b = 0; b < blocks; ++b) {
#pragma GCC unroll 4
    for (int step = 0; step < 4; ++step) {
      const __m512i w0 = Codes::load(panel, step, 0), w1 = Codes::load(panel, step, 1);
#pragma GCC unroll 12
      for (int i = 0; i < rows; ++i) {
        const __m512i c =
            broadcast(codes[i / 3] + static_cast<std::uint64_t>(i % 3) * stride + step * 4);
        add_product(sums[step % sets][i][0], w0, c);
        add_product(sums[step % sets][i][1], w1, c);
      }
    }
    panel += Codes::block_bytes;
#pragma GCC unroll 4
    for (auto& row : codes) row += block;
  }

#pragma GCC unroll 12
  for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < vectors; ++v) {
      __m512i sum = sums[0][i][v];
#pragma GCC unroll 3
      for (int s = 1; s < sets; ++s) sum = _mm512_add_epi32(sum, sums[s][i][v]);
      const std::uint64_t at = n + static_cast<std::uint64_t>(v) * lanes;
      if (at < n1) finish(p, m + static_cast<std::uint64_t>(i), at, n1 - at, Codes::offset, sum);
    }
  }
}

template <class Codes>
constexpr void (*tiles[tile_rows])(const Product&, std::uint64_t, std::uint64_t, std::uint64_t) = {
    tile<Codes, 1>, tile<Codes, 2>,  tile<Codes, 3>,  tile<Codes, 4>,
    tile<Codes, 5>, tile<Codes, 6>,  tile<Codes, 7>,  tile<Codes, 8>,
    tile<Codes, 9>, tile<Codes, 10>, tile<Codes, 11>, tile<Codes, 12>};

template <class Codes>
void multiply(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0, std::uint64_t m1,
              std::uint64_t n0, std::uint64_t n1, const Matrix& y) {
  const Product product{w, x, y};
  for (std::uint64_t n = n0; n < n1; n += panel_rows) {
    // As few tiles as there can be, of about the same height.
    std::uint64_t left = (m1 - m0 + tile_rows - 1) / tile_rows;
    for (std::uint64_t m = m0; m < m1; --left) {
      const std::uint64_t rows = (m1 - m + left - 1) / left;
      tiles<Codes>[rows - 1](product, m, n, least(n + panel_rows, n1));
      m += rows;
    }
  }
}

}  // namespace

const LinearKernel int8_avx512_vnni = {"int8.avx512_vnni", Isa::avx512_vnni, panel_rows,
                                       packed_int8,        pack_int8,        nullptr,
                                       multiply<Int8Codes>};
const LinearKernel int4_avx512_vnni = {"int4.avx512_vnni", Isa::avx512_vnni, panel_rows,
                                       packed_int4,        nullptr,          pack_int4,
                                       multiply<Int4Codes>};

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
