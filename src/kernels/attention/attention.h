// Attention of one head, for a range of queries:
//
//   q [S, heads · D]   k, v [T, kv_heads · D]   y [S, heads · D]     head h reads kv head
//   h·kv_heads/heads s[i, j] = scale · Σ_d q[i, d] · k[j, d]     where query i sees key j: keys[j]
//   is not 0, and
//                                               (causal) j ≤ i + T − S
//   p[i, j] = exp(s[i, j] − max_j s[i, j])      y[i, d] = Σ_j p[i, j] · v[j, d] / Σ_j p[i, j]
//
// A query that sees no key gives 0; a query with a score that is NaN or +inf gives NaN. Keys that
// `keys` leaves out may hold anything. No S × T matrix is held: keys are taken in blocks, and sums
// are rescaled when a block raises the maximum (online softmax; M. Milakov and N. Gimelshein,
// arXiv 1805.02867; T. Dao et al., arXiv 2205.14135). A query's result depends on the blocks, which
// lie at multiples of their size from key 0, and on nothing else, so any split gives the same bits.
//
// Variants differ in rounding. avx512_bf16 takes q, k and v in BF16 only: products of bf16 pairs
// with float sums, p rounded to bf16 both in the numerator and in the denominator: relative error
// of an output about 2^-9 of the largest |v|. The float variants round as float sums do.
#ifndef PARFAIT_KERNELS_ATTENTION_ATTENTION_H_
#define PARFAIT_KERNELS_ATTENTION_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

struct AttentionProblem {
  ConstMatrix q, k, v;
  Matrix y;
  std::uint64_t heads = 1, kv_heads = 1, head_size = 0;
  float scale = 1;
  bool causal = false;
  const std::uint8_t* keys = nullptr;  // T of them, or null
};

struct AttentionKernel {
  std::string_view name;  // "attention.avx512_bf16"
  Isa isa;
  bool bf16_only;            // q, k and v must be BF16
  std::uint64_t key_block;   // ranges of keys given to pack start at multiples of this
  std::uint64_t query_tile;  // queries that run takes best at once
  // Keys and values of one kv head, packed, 64-byte aligned; any key blocks on any thread.
  std::uint64_t (*packed_bytes)(const AttentionProblem&);
  void (*pack)(const AttentionProblem&, std::uint64_t kv_head, std::uint64_t key0,
               std::uint64_t key1, std::byte* packed);
  std::uint64_t (*scratch_bytes)(const AttentionProblem&);  // of run, 64-byte aligned
  // Queries [i0, i1) of one head, at most query_tile of them.
  void (*run)(const AttentionProblem&, std::uint64_t head, const std::byte* packed,
              std::uint64_t i0, std::uint64_t i1, std::byte* scratch);
};

// Fastest first, the plain reference last.
std::span<const AttentionKernel> attention_kernels();

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_ATTENTION_ATTENTION_H_
