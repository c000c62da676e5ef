#include "runtime/ops_attention.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "kernels/attention/attention.h"
#include "runtime/ops_checks.h"

namespace parfait::runtime {
namespace {

constexpr std::uint64_t most_heads = 1 << 16, largest_head = 512;

Result<kernels::AttentionProblem> check(const ConstMatrix& q, const ConstMatrix& k,
                                        const ConstMatrix& v, const AttentionOptions& options,
                                        const Matrix& y) {
  constexpr const char* op = "attention";
  kernels::AttentionProblem p;
  p.heads = options.heads;
  p.kv_heads = options.kv_heads ? options.kv_heads : options.heads;
  if (p.heads == 0 || p.heads > most_heads || p.kv_heads > p.heads || p.heads % p.kv_heads != 0)
    return make_error(ErrorCode::run_shape,
                      "attention: {} heads and {} key-value heads, where the second divides the "
                      "first, from 1 to {}",
                      p.heads, p.kv_heads, most_heads);
  p.head_size = q.columns / p.heads;
  if (p.head_size * p.heads != q.columns || p.head_size == 0 || p.head_size % 8 != 0 ||
      p.head_size > largest_head)
    return make_error(ErrorCode::run_shape,
                      "attention: q has {} columns for {} heads, where a head has 8, 16, ... or {}",
                      q.columns, p.heads, largest_head);
  const std::uint64_t kv_columns = p.kv_heads * p.head_size;
  PARFAIT_CHECK_OK(check_operand(op, "q", q, q.rows, q.columns));
  PARFAIT_CHECK_OK(check_operand(op, "k", k, k.rows, kv_columns));
  PARFAIT_CHECK_OK(check_operand(op, "v", v, k.rows, kv_columns));
  PARFAIT_CHECK_OK(check_operand(op, "y", y, q.rows, q.columns));
  PARFAIT_CHECK_OK(check_vector(op, "keys", options.keys.size(), k.rows));
  p.q = q;
  p.k = k;
  p.v = v;
  p.y = y;
  p.causal = options.mask == AttentionMask::causal;
  p.keys = options.keys.empty() ? nullptr : options.keys.data();
  p.scale = options.scale != 0 ? options.scale : 1.0f / std::sqrt(static_cast<float>(p.head_size));
  return p;
}

const kernels::AttentionKernel& choose(std::span<const Isa> isas,
                                       const kernels::AttentionProblem& p) {
  const bool bf16 =
      p.q.dtype == DType::bf16 && p.k.dtype == DType::bf16 && p.v.dtype == DType::bf16;
  for (const kernels::AttentionKernel& kernel : kernels::attention_kernels())
    if ((bf16 || !kernel.bf16_only) && std::ranges::find(isas, kernel.isa) != isas.end())
      return kernel;
  return kernels::attention_kernels().back();
}

std::uint64_t heads_at_once(unsigned threads, std::uint64_t tiles,
                            const kernels::AttentionProblem& p) {
  const std::uint64_t group = p.heads / p.kv_heads;
  return std::clamp<std::uint64_t>(ceil_div(std::uint64_t{16} * threads, tiles * group), 1,
                                   p.kv_heads);
}

}  // namespace

// Some key-value heads are packed, then the queries of the heads that read them run: as many as
// keep all threads busy, so that scratch is a few heads and not the whole of k and v.
Result<Done> attention(Ops& ops, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                       const AttentionOptions& options, const Matrix& y) {
  PARFAIT_TRY(const kernels::AttentionProblem p, check(q, k, v, options, y));
  if (q.rows == 0) return Done{};
  const kernels::AttentionKernel& kernel = choose(ops.isas, p);
  const std::uint64_t group = p.heads / p.kv_heads;
  const std::uint64_t tiles = ceil_div(q.rows, kernel.query_tile);
  const std::uint64_t blocks = ceil_div(k.rows, kernel.key_block);
  const std::uint64_t at_once = heads_at_once(ops.pool.count(), tiles, p);
  const std::uint64_t head_bytes = round_up(kernel.packed_bytes(p), 64);
  ops.reserve_packed(head_bytes * at_once);
  ops.reserve_bytes(kernel.scratch_bytes(p));
  for (std::uint64_t first = 0; first < p.kv_heads; first += at_once) {
    const std::uint64_t count = std::min(at_once, p.kv_heads - first);
    if (head_bytes != 0)
      ops.pool.run(count * blocks, [&](std::uint64_t piece, unsigned) {
        const std::uint64_t head = piece / blocks, key0 = piece % blocks * kernel.key_block;
        kernel.pack(p, first + head, key0, std::min(key0 + kernel.key_block, k.rows),
                    ops.packed.data() + head * head_bytes);
      });
    ops.pool.run(count * group * tiles, [&](std::uint64_t piece, unsigned thread) {
      const std::uint64_t head = piece / tiles, i0 = piece % tiles * kernel.query_tile;
      kernel.run(p, first * group + head, ops.packed.data() + head / group * head_bytes, i0,
                 std::min(i0 + kernel.query_tile, q.rows), ops.bytes[thread].data());
    });
  }
  return Done{};
}

std::uint64_t attention_scratch(std::span<const Isa> isas, unsigned threads,
                                const AttentionShape& shape) {
  kernels::AttentionProblem p;
  p.heads = shape.heads;
  p.kv_heads = shape.kv_heads;
  p.head_size = shape.head_size;
  p.q = p.k = p.v = {nullptr, shape.dtype, shape.keys, shape.kv_heads * shape.head_size, 0};
  p.q.rows = shape.queries;
  p.q.columns = shape.heads * shape.head_size;
  const kernels::AttentionKernel& kernel = choose(isas, p);
  const std::uint64_t tiles = std::max<std::uint64_t>(ceil_div(p.q.rows, kernel.query_tile), 1);
  return round_up(kernel.packed_bytes(p), 64) * heads_at_once(threads, tiles, p) +
         threads * kernel.scratch_bytes(p);
}

}  // namespace parfait::runtime
