// Attention on AVX-512 BF16: pairs of bf16 products, float sums. The register tile is 12 queries by
// 32 keys or columns.

#include "kernels/attention/variants.h"

#if defined(__x86_64__)

#include "kernels/attention/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_bf16_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using avx512::all;
using avx512::exp2;
using avx512::Floats;
using avx512::greater;
using avx512::hide;
using avx512::largest;
using avx512::load;
using avx512::multiply;
using avx512::multiply_add;
using avx512::store;
using avx512::store_output;
using avx512::total;
using avx512::zeros;

constexpr int lanes = 16, tile_rows = 12, depth = 2;
using Element = std::uint16_t;
using Weights = __m512i;
using Pairs = __m512i;

inline Weights load_weights(const Element* at) { return _mm512_loadu_si512(at); }
inline Pairs broadcast(const Element* at) {
  std::int32_t pair;
  __builtin_memcpy(&pair, at, sizeof(pair));
  return _mm512_set1_epi32(pair);
}
// In assembly, because GCC 12 copies the sums of the intrinsic to and fro.
inline void add_product(Floats& sums, Weights w, Pairs c) {
  __asm__("vdpbf16ps %2, %1, %0" : "+v"(sums) : "v"(w), "v"(c));
}

inline Floats store_rounded(Element* at, Floats v0, Floats v1) {
  const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(v1, v0);
  _mm512_storeu_si512(at, both);
  return _mm512_add_ps(
      _mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
      _mm512_castsi512_ps(_mm512_and_si512(both, _mm512_set1_epi32(static_cast<int>(0xffff0000)))));
}

inline void load_query(const AttentionProblem& p, std::uint64_t i, std::uint64_t column,
                       std::uint64_t count, Element* at) {
  __builtin_memcpy(at, static_cast<const std::byte*>(p.q.data) + (i * p.q.stride + column) * 2,
                   count * 2);
}

inline __mmask32 first_of_32(std::uint64_t count) {
  return count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
}

// Keys from `first` on, those with a bias of -inf as zeros.
void pack_keys(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
               std::uint64_t keys, const float* bias, Element* out) {
  const auto* data = static_cast<const std::byte*>(p.k.data);
  const std::uint64_t D = p.head_size;
  for (std::uint64_t n = 0; n < keys; n += 16) {
    Element* to = out + n / 32 * D * 32 + n % 32 * 2;
    for (std::uint64_t d = 0; d < D; d += 32) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (std::uint64_t i = 0; i < 16; ++i)
        rows[i] = bias[n + i] == 0 ? _mm512_maskz_loadu_epi16(
                                         first_of_32(D - d),
                                         data + ((first + n + i) * p.k.stride + column + d) * 2)
                                   : _mm512_setzero_si512();
      avx512::transpose(rows);
#pragma GCC unroll 16
      for (std::uint64_t pair = 0; pair < 16; ++pair)
        if (d + 2 * pair < D) _mm512_storeu_si512(to + (d + 2 * pair) * 32, rows[pair]);
    }
  }
}

// Sixteen columns of a key as words, or zeros.
inline __m512i value_words(const AttentionProblem& p, std::uint64_t key, std::uint64_t column,
                           std::uint64_t count, float bias) {
  if (bias != 0) return _mm512_setzero_si512();
  return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(
      avx512::tail_mask(count),
      static_cast<const std::byte*>(p.v.data) + (key * p.v.stride + column) * 2));
}

void pack_values(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
                 std::uint64_t keys, std::uint64_t wide, const float* bias, Element* out) {
  for (std::uint64_t n = 0; n < keys; n += 2) {
    for (std::uint64_t c = 0; c < wide; c += 16) {
      const std::uint64_t count = c < p.head_size ? p.head_size - c : 0;
      const __m512i a = value_words(p, first + n, column + c, count, bias[n]),
                    b = value_words(p, first + n + 1, column + c, count, bias[n + 1]);
      // A panel of 32 columns has 128 steps of 64 elements.
      _mm512_storeu_si512(out + c / 32 * 256 * 32 + n / 2 * 64 + c % 32 * 2,
                          _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
    }
  }
}

#include "kernels/attention/online_softmax.inc"

}  // namespace

const AttentionKernel attention_avx512_bf16 =
    attention_kernel("attention.avx512_bf16", Isa::avx512_bf16, true);

}  // namespace parfait::kernels

#include "kernels/avx512_bf16_end.inc"

#endif  // __x86_64__
