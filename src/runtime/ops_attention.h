#ifndef PARFAIT_RUNTIME_OPS_ATTENTION_H_
#define PARFAIT_RUNTIME_OPS_ATTENTION_H_

#include "base/result.h"
#include "runtime/ops.h"

namespace parfait::runtime {

Result<Done> attention(Ops& ops, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                       const AttentionOptions& options, const Matrix& y);

// Scratch that such a call needs.
struct AttentionShape {
  std::uint64_t queries = 0, keys = 0, heads = 1, kv_heads = 1, head_size = 0;
  DType dtype = DType::f32;
};
std::uint64_t attention_scratch(std::span<const Isa> isas, unsigned threads,
                                const AttentionShape& shape);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_ATTENTION_H_
