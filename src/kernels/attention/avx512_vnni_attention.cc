// Attention on AVX-512 in float.

#include "kernels/attention/variants.h"

#if defined(__x86_64__)

#include "kernels/attention/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
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
using avx512::load16;
using avx512::multiply;
using avx512::multiply_add;
using avx512::store;
using avx512::store_output;
using avx512::tail_mask;
using avx512::total;
using avx512::zeros;

constexpr int lanes = 16, tile_rows = 12, depth = 1;
using Element = float;
using Weights = __m512;
using Pairs = __m512;

inline Weights load_weights(const Element* at) { return load(at); }
inline Pairs broadcast(const Element* at) { return all(*at); }
inline void add_product(Floats& sums, Weights w, Pairs c) { sums = multiply_add(w, c, sums); }

inline Floats store_rounded(Element* at, Floats v0, Floats v1) {
  store(at, v0);
  store(at + lanes, v1);
  return _mm512_add_ps(v0, v1);
}

inline void load_query(const AttentionProblem& p, std::uint64_t i, std::uint64_t column,
                       std::uint64_t count, Element* at) {
  for (std::uint64_t d = 0; d < count; d += lanes)
    _mm512_mask_storeu_ps(at + d, tail_mask(count - d),
                          load16(p.q.dtype, static_cast<const std::byte*>(p.q.data),
                                 i * p.q.stride + column + d, tail_mask(count - d)));
}

void pack_keys(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
               std::uint64_t keys, const float* bias, Element* out) {
  const auto* data = static_cast<const std::byte*>(p.k.data);
  const std::uint64_t D = p.head_size;
  for (std::uint64_t n = 0; n < keys; n += 16) {
    Element* to = out + n / 32 * D * 32 + n % 32;
    for (std::uint64_t d = 0; d < D; d += 16) {
      __m512i rows[16];
#pragma GCC unroll 16
      for (std::uint64_t i = 0; i < 16; ++i)
        rows[i] = _mm512_castps_si512(
            bias[n + i] == 0 ? load16(p.k.dtype, data, (first + n + i) * p.k.stride + column + d,
                                      tail_mask(D - d))
                             : zeros());
      avx512::transpose(rows);
#pragma GCC unroll 16
      for (std::uint64_t i = 0; i < 16; ++i)
        if (d + i < D) _mm512_storeu_si512(to + (d + i) * 32, rows[i]);
    }
  }
}

void pack_values(const AttentionProblem& p, std::uint64_t column, std::uint64_t first,
                 std::uint64_t keys, std::uint64_t wide, const float* bias, Element* out) {
  const auto* data = static_cast<const std::byte*>(p.v.data);
  for (std::uint64_t n = 0; n < keys; ++n)
    for (std::uint64_t c = 0; c < wide; c += 16)
      store(out + c / 32 * 256 * 32 + n * 32 + c % 32,
            bias[n] == 0 && c < p.head_size
                ? load16(p.v.dtype, data, (first + n) * p.v.stride + column + c,
                         tail_mask(p.head_size - c))
                : zeros());
}

#include "kernels/attention/online_softmax.inc"

}  // namespace

const AttentionKernel attention_avx512_vnni =
    attention_kernel("attention.avx512_vnni", Isa::avx512_vnni, false);

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
