// The integer linear layer on AVX-512 VNNI.
//
// vpdpbusd multiplies unsigned by signed bytes, four at a time, and adds them to int32 without
// saturation. The weight is the unsigned operand: int8 codes plus 128, int4 codes plus 8. Then
//   Σ_k c·(w + offset) = a + offset · Σ_k c,    so    a = sum − offset · sums[m],
// exactly, since int32 arithmetic wraps. The activation is the signed operand, four codes
// broadcast.
//
// Packed weights: panels of 64 rows; in a panel, for each 4 columns (int8) 64 rows × 4 bytes, or
// for each 8 columns (int4) 64 rows × 4 bytes whose low nibbles are columns 0..3 and high nibbles
// columns 4..7. A panel of the widest real layer (K = 14,336) is 0.9 MB in int8 and fits the
// second-level cache; the register tile is 6 rows of x by 64 rows of W: 24 sums, 4 weights, 1
// activation.

#include "kernels/linear/variants.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/floats.h"

#if defined(__clang__)
#pragma clang attribute push( \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC diagnostic push
// GCC 12's own headers read a deliberately undefined register (its bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif

namespace parfait::kernels {
namespace {

constexpr std::uint64_t panel_rows = 64;
constexpr std::uint64_t lanes = 16;

__mmask16 tail_mask(std::uint64_t count) {
  return count >= lanes ? static_cast<__mmask16>(0xffff)
                        : static_cast<__mmask16>((1u << count) - 1);
}

// --- Conversions ---

__m512 load16(DType dtype, const std::byte* data, std::uint64_t i, __mmask16 mask) {
  if (dtype == DType::f32) return _mm512_maskz_loadu_ps(mask, data + 4 * i);
  const __m256i half = _mm256_maskz_loadu_epi16(mask, data + 2 * i);
  if (dtype == DType::bf16)
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  return _mm512_cvtph_ps(half);
}

void store16(DType dtype, std::byte* data, std::uint64_t i, __mmask16 mask, __m512 value) {
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

// --- Rotation, as base/hadamard.h defines it: y = t − (d, c, b, a), t = ½·((a + b) + (c + d)) ---

// Stride 1: a, b, c, d are neighbours.
__m512 stage_1(__m512 v) {
  const __m512 pair = _mm512_add_ps(v, _mm512_permute_ps(v, 0xb1));
  const __m512 sum = _mm512_add_ps(pair, _mm512_permute_ps(pair, 0x4e));
  return _mm512_sub_ps(_mm512_mul_ps(sum, _mm512_set1_ps(0.5f)), _mm512_permute_ps(v, 0x1b));
}
// Stride 4: a, b, c, d are the four 128-bit lanes.
__m512 stage_4(__m512 v) {
  const __m512 pair = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0xb1));
  const __m512 sum = _mm512_add_ps(pair, _mm512_shuffle_f32x4(pair, pair, 0x4e));
  return _mm512_sub_ps(_mm512_mul_ps(sum, _mm512_set1_ps(0.5f)), _mm512_shuffle_f32x4(v, v, 0x1b));
}

// The stages of stride 16 and above, in place.
void rotate_wide(float* r, std::uint64_t count, std::uint64_t group) {
  const __m512 half = _mm512_set1_ps(0.5f);
  for (std::uint64_t stride = 16; stride < group; stride *= 4) {
    for (std::uint64_t block = 0; block < count; block += 4 * stride) {
      for (std::uint64_t i = block; i < block + stride; i += lanes) {
        const __m512 a = _mm512_load_ps(r + i), b = _mm512_load_ps(r + i + stride);
        const __m512 c = _mm512_load_ps(r + i + 2 * stride), d = _mm512_load_ps(r + i + 3 * stride);
        const __m512 t =
            _mm512_mul_ps(_mm512_add_ps(_mm512_add_ps(a, b), _mm512_add_ps(c, d)), half);
        _mm512_store_ps(r + i, _mm512_sub_ps(t, d));
        _mm512_store_ps(r + i + stride, _mm512_sub_ps(t, c));
        _mm512_store_ps(r + i + 2 * stride, _mm512_sub_ps(t, b));
        _mm512_store_ps(r + i + 3 * stride, _mm512_sub_ps(t, a));
      }
    }
  }
}

// --- Quantisation ---

void quantize(const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
              std::uint64_t rotate_group, Activation mode, QuantizedRows& out) {
  const float largest = mode == Activation::int8 ? 127.0f : 7.0f;
  const __m512i lo = _mm512_set1_epi32(mode == Activation::int8 ? -128 : -7);
  const __m512i hi = _mm512_set1_epi32(mode == Activation::int8 ? 127 : 7);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const std::uint64_t K = x.columns;
  // A row as floats: a multiple of the vector, so groups of 4 at the end are whole too.
  AlignedBytes scratch(round_up(K, lanes) * sizeof(float));
  auto* r = reinterpret_cast<float*>(scratch.data());
  const auto* data = static_cast<const std::byte*>(x.data);
  for (std::uint64_t m = first; m < last; ++m) {
    for (std::uint64_t k = 0; k < K; k += lanes) {
      __m512 v = load16(x.dtype, data, m * x.stride + k, tail_mask(K - k));
      if (rotate_group >= 4) v = stage_1(v);
      if (rotate_group >= 16) v = stage_4(v);
      _mm512_store_ps(r + k, v);
    }
    if (rotate_group > 16) rotate_wide(r, K, rotate_group);
    // As integers, magnitudes order like floats, with infinities and NaN above all numbers.
    __m512i most = _mm512_setzero_si512();
    for (std::uint64_t k = 0; k < K; k += lanes)
      most = _mm512_max_epu32(most, _mm512_and_si512(_mm512_load_si512(r + k), magnitude));
    const std::uint32_t absmax_bits = _mm512_reduce_max_epu32(most);
    auto* c = reinterpret_cast<std::int8_t*>(out.codes.data()) + m * out.stride;
    std::fill(c + round_up(K, lanes), c + out.stride, std::int8_t{0});
    if (absmax_bits >= 0x7f800000u) {
      std::fill_n(c, out.stride, std::int8_t{0});
      out.sums[m] = 0;
      out.scales[m] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float s_x = std::max(std::bit_cast<float>(absmax_bits) / largest, 1e-30f);
    const __m512 divisor = _mm512_set1_ps(s_x);
    __m512i sum = _mm512_setzero_si512();
    for (std::uint64_t k = 0; k < K; k += lanes) {
      const __m512 quotient = _mm512_div_ps(_mm512_load_ps(r + k), divisor);
      const __m512i code = _mm512_max_epi32(
          _mm512_min_epi32(
              _mm512_cvt_roundps_epi32(quotient, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
              hi),
          lo);
      sum = _mm512_add_epi32(sum, code);
      _mm_store_si128(reinterpret_cast<__m128i*>(c + k), _mm512_cvtepi32_epi8(code));
    }
    out.sums[m] = _mm512_reduce_add_epi32(sum);
    out.scales[m] = s_x;
  }
}

// --- Packing ---

std::uint64_t packed_int8(std::uint64_t rows, std::uint64_t columns) {
  return round_up(rows, panel_rows) * round_up(columns, 4);
}
std::uint64_t packed_int4(std::uint64_t rows, std::uint64_t columns) {
  return round_up(rows, panel_rows) * (columns / 2);
}

void pack_int8(const Int8Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t steps = ceil_div(w.columns, 4);
  for (std::uint64_t n = n0; n < n1; ++n) {
    const std::byte* row = w.codes + n * w.columns;
    std::byte* panel = out + n / panel_rows * panel_rows * steps * 4 + n % panel_rows * 4;
    for (std::uint64_t step = 0; step < steps; ++step) {
      std::uint32_t four = 0;
      const std::uint64_t left = w.columns - step * 4;
      std::memcpy(&four, row + step * 4, left < 4 ? left : 4);
      four ^= 0x80808080u;
      std::memcpy(panel + step * panel_rows * 4, &four, 4);
    }
  }
}

void pack_int4(const Int4Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t steps = w.columns / 8;
  for (std::uint64_t n = n0; n < n1; ++n) {
    const std::byte* row = w.codes + n * Int4Weight::row_bytes(w.columns);
    std::byte* panel = out + n / panel_rows * panel_rows * steps * 4 + n % panel_rows * 4;
    for (std::uint64_t step = 0; step < steps; ++step) {
      // Bytes hold columns (0,1) (2,3) (4,5) (6,7); wanted are (0,4) (1,5) (2,6) (3,7).
      std::uint32_t eight;
      std::memcpy(&eight, row + step * 4, 4);
      const std::uint32_t first = eight & 0xffffu, second = eight >> 16;
      std::uint32_t low = 0, high = 0;
      for (unsigned i = 0; i < 4; ++i) {
        low |= (first >> (4 * i) & 15u) << (8 * i);
        high |= (second >> (4 * i) & 15u) << (8 * i);
      }
      const std::uint32_t codes = (low | high << 4) ^ 0x88888888u;
      std::memcpy(panel + step * panel_rows * 4, &codes, 4);
    }
  }
}

// --- Multiplication ---

struct Tile {
  const PackedWeight& w;
  const QuantizedRows& x;
  const Matrix& y;
};

// Scales, bias and rounding of one row of sums.
inline void finish_row(const Tile& tile, std::uint64_t m, std::uint64_t n, std::uint64_t n1,
                       int offset, const __m512i (&sums)[4]) {
  const __m512i correction = _mm512_set1_epi32(static_cast<int>(
      static_cast<std::uint32_t>(offset) * static_cast<std::uint32_t>(tile.x.sums[m])));
  const __m512 s_x = _mm512_set1_ps(tile.x.scales[m]);
  for (std::uint64_t v = 0; v < 4 && n + v * lanes < n1; ++v) {
    const std::uint64_t at = n + v * lanes;
    const __mmask16 mask = tail_mask(n1 - at);
    const __m512 a = _mm512_cvtepi32_ps(_mm512_sub_epi32(sums[v], correction));
    const __m512 scale = _mm512_mul_ps(s_x, _mm512_maskz_loadu_ps(mask, tile.w.scales.data() + at));
    __m512 value = _mm512_mul_ps(a, scale);
    if (!tile.w.bias.empty())
      value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, tile.w.bias.data() + at));
    store16(tile.y.dtype, static_cast<std::byte*>(tile.y.data), m * tile.y.stride + at, mask,
            value);
  }
}

template <int rows>
void tile_int8(const Tile& tile, std::uint64_t m, std::uint64_t n, std::uint64_t n1) {
  const std::uint64_t steps = ceil_div(tile.w.columns, 4);
  const std::byte* panel = tile.w.codes.data() + n * steps * 4;
  const std::byte* x = tile.x.codes.data() + m * tile.x.stride;
  const std::uint64_t stride = tile.x.stride;
  __m512i sums[rows][4];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < 4; ++v) sums[i][v] = _mm512_setzero_si512();
  for (std::uint64_t step = 0; step < steps; ++step) {
    const __m512i w0 = _mm512_load_si512(panel), w1 = _mm512_load_si512(panel + 64);
    const __m512i w2 = _mm512_load_si512(panel + 128), w3 = _mm512_load_si512(panel + 192);
    panel += 256;
#pragma GCC unroll 6
    for (int i = 0; i < rows; ++i) {
      std::int32_t four;
      std::memcpy(&four, x + static_cast<std::uint64_t>(i) * stride + step * 4, 4);
      const __m512i c = _mm512_set1_epi32(four);
      sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], w0, c);
      sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], w1, c);
      sums[i][2] = _mm512_dpbusd_epi32(sums[i][2], w2, c);
      sums[i][3] = _mm512_dpbusd_epi32(sums[i][3], w3, c);
    }
  }
  for (int i = 0; i < rows; ++i)
    finish_row(tile, m + static_cast<std::uint64_t>(i), n, n1, 128, sums[i]);
}

template <int rows>
void tile_int4(const Tile& tile, std::uint64_t m, std::uint64_t n, std::uint64_t n1) {
  const std::uint64_t steps = tile.w.columns / 8;
  const std::byte* panel = tile.w.codes.data() + n * steps * 4;
  const std::byte* x = tile.x.codes.data() + m * tile.x.stride;
  const std::uint64_t stride = tile.x.stride;
  const __m512i nibble = _mm512_set1_epi8(15);
  __m512i sums[rows][4];
#pragma GCC unroll 6
  for (int i = 0; i < rows; ++i)
    for (int v = 0; v < 4; ++v) sums[i][v] = _mm512_setzero_si512();
  for (std::uint64_t step = 0; step < steps; ++step) {
    for (int half = 0; half < 2;
         ++half) {  // columns 0..3 from the low nibbles, 4..7 from the high ones
      const unsigned shift = half ? 4 : 0;
      const __m512i w0 =
          _mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(panel), shift), nibble);
      const __m512i w1 =
          _mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(panel + 64), shift), nibble);
      const __m512i w2 =
          _mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(panel + 128), shift), nibble);
      const __m512i w3 =
          _mm512_and_si512(_mm512_srli_epi16(_mm512_load_si512(panel + 192), shift), nibble);
#pragma GCC unroll 6
      for (int i = 0; i < rows; ++i) {
        std::int32_t four;
        std::memcpy(&four,
                    x + static_cast<std::uint64_t>(i) * stride + step * 8 +
                        static_cast<std::uint64_t>(half) * 4,
                    4);
        const __m512i c = _mm512_set1_epi32(four);
        sums[i][0] = _mm512_dpbusd_epi32(sums[i][0], w0, c);
        sums[i][1] = _mm512_dpbusd_epi32(sums[i][1], w1, c);
        sums[i][2] = _mm512_dpbusd_epi32(sums[i][2], w2, c);
        sums[i][3] = _mm512_dpbusd_epi32(sums[i][3], w3, c);
      }
    }
    panel += 256;
  }
  for (int i = 0; i < rows; ++i)
    finish_row(tile, m + static_cast<std::uint64_t>(i), n, n1, 8, sums[i]);
}

using TileFunction = void (*)(const Tile&, std::uint64_t, std::uint64_t, std::uint64_t);

void multiply_tiles(const Tile& tile, std::uint64_t m0, std::uint64_t m1, std::uint64_t n0,
                    std::uint64_t n1, const TileFunction (&tiles)[6]) {
  for (std::uint64_t n = n0; n < n1; n += panel_rows) {
    const std::uint64_t end = std::min(n + panel_rows, n1);
    for (std::uint64_t m = m0; m < m1;) {
      const std::uint64_t rows = std::min<std::uint64_t>(m1 - m, 6);
      tiles[rows - 1](tile, m, n, end);
      m += rows;
    }
  }
}

void multiply_int8(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y) {
  constexpr TileFunction tiles[6] = {tile_int8<1>, tile_int8<2>, tile_int8<3>,
                                     tile_int8<4>, tile_int8<5>, tile_int8<6>};
  multiply_tiles({w, x, y}, m0, m1, n0, n1, tiles);
}

void multiply_int4(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y) {
  constexpr TileFunction tiles[6] = {tile_int4<1>, tile_int4<2>, tile_int4<3>,
                                     tile_int4<4>, tile_int4<5>, tile_int4<6>};
  multiply_tiles({w, x, y}, m0, m1, n0, n1, tiles);
}

// --- Float product: the 16 partial sums are the lanes ---

template <int rows>
void float_rows(const float* x, std::uint64_t ldx, std::uint64_t m, const float* w, std::uint64_t n,
                std::uint64_t columns, const float* bias, const Matrix& y) {
  __m512 partial[rows];
  for (int i = 0; i < rows; ++i) partial[i] = _mm512_setzero_ps();
  for (std::uint64_t k = 0; k < columns; k += lanes) {
    const __mmask16 mask = tail_mask(columns - k);
    const __m512 weights = _mm512_maskz_loadu_ps(mask, w + k);
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
      const __m512 in =
          _mm512_maskz_loadu_ps(mask, x + (m + static_cast<std::uint64_t>(i)) * ldx + k);
      partial[i] = _mm512_mask_add_ps(partial[i], mask, partial[i], _mm512_mul_ps(in, weights));
    }
  }
  for (int i = 0; i < rows; ++i) {
    alignas(64) float p[lanes];
    _mm512_store_ps(p, partial[i]);
    for (std::size_t width = 1; width < lanes; width *= 2)
      for (std::size_t lane = 0; lane < lanes; lane += 2 * width) p[lane] += p[lane + width];
    const float value = bias ? p[0] + bias[n] : p[0];
    store_float(y.dtype, static_cast<std::byte*>(y.data),
                (m + static_cast<std::uint64_t>(i)) * y.stride + n, value);
  }
}

void multiply_float(const float* x, std::uint64_t ldx, std::uint64_t m0, std::uint64_t m1,
                    const float* w, std::uint64_t n0, std::uint64_t n1, std::uint64_t columns,
                    const float* bias, const Matrix& y) {
  for (std::uint64_t n = n0; n < n1; ++n) {
    const float* row = w + (n - n0) * columns;
    std::uint64_t m = m0;
    for (; m + 8 <= m1; m += 8) float_rows<8>(x, ldx, m, row, n, columns, bias, y);
    for (; m < m1; ++m) float_rows<1>(x, ldx, m, row, n, columns, bias, y);
  }
}

}  // namespace

const QuantizeKernel quantize_avx512_vnni = {"quantize.avx512_vnni", Isa::avx512_vnni, quantize};
const LinearKernel int8_avx512_vnni = {"int8.avx512_vnni", Isa::avx512_vnni, panel_rows,
                                       packed_int8,        pack_int8,        nullptr,
                                       multiply_int8};
const LinearKernel int4_avx512_vnni = {"int4.avx512_vnni", Isa::avx512_vnni, panel_rows,
                                       packed_int4,        nullptr,          pack_int4,
                                       multiply_int4};
const FloatKernel float_avx512_vnni = {"decode.avx512_vnni", Isa::avx512_vnni, multiply_float};

}  // namespace parfait::kernels

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#pragma GCC diagnostic pop
#endif

#endif  // __x86_64__
