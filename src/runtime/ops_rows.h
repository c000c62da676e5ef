// The operations on rows behind parfait/ops.h: arguments checked, kernels chosen, rows split over
// threads.
#ifndef PARFAIT_RUNTIME_OPS_ROWS_H_
#define PARFAIT_RUNTIME_OPS_ROWS_H_

#include <span>

#include "parfait/ops.h"

namespace parfait::runtime {

Result<Done> rms_norm(Ops& ops, const ConstMatrix& x, const NormOptions& options, const Matrix& y);
Result<Done> layer_norm(Ops& ops, const ConstMatrix& x, const NormOptions& options,
                        const Matrix& y);
Result<Done> rope(Ops& ops, const ConstMatrix& x, const ConstMatrix& cos, const ConstMatrix& sin,
                  const RopeOptions& options, const Matrix& y);
Result<Done> silu(Ops& ops, const ConstMatrix& x, const Matrix& y);
Result<Done> gelu(Ops& ops, const ConstMatrix& x, Gelu kind, const Matrix& y);
Result<Done> silu_gate(Ops& ops, const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y);
Result<Done> gelu_gate(Ops& ops, const ConstMatrix& gate, const ConstMatrix& up, Gelu kind,
                       const Matrix& y);
Result<Done> add_gated(Ops& ops, const ConstMatrix& x, std::span<const float> gate,
                       const ConstMatrix& h, const Matrix& y);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_ROWS_H_
