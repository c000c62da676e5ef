#ifndef PARFAIT_RUNTIME_OPS_ATTENTION_H_
#define PARFAIT_RUNTIME_OPS_ATTENTION_H_

#include "base/result.h"
#include "runtime/ops.h"

namespace parfait::runtime {

Result<Done> attention(Ops& ops, const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                       const AttentionOptions& options, const Matrix& y);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_ATTENTION_H_
