#ifndef PARFAIT_RUNTIME_OPS_DENSE_H_
#define PARFAIT_RUNTIME_OPS_DENSE_H_

#include "base/result.h"
#include "kernels/dense/dense.h"
#include "runtime/ops.h"

namespace parfait::runtime {

// A packed weight and the kernel whose layout it has.
struct DenseWeight {
  const kernels::DenseKernel* kernel = nullptr;
  kernels::PackedDense packed;
};
struct ConvWeight {
  kernels::PackedConv packed;
};

// Output pixels that a convolution makes at a time, about, whatever the number of threads.
inline constexpr std::uint64_t conv_strip_pixels = 2048;

Result<std::shared_ptr<const DenseWeight>> pack_dense(Ops& ops, const ConstMatrix& w,
                                                      std::span<const float> bias);
Result<Done> dense(Ops& ops, const ConstMatrix& x, const DenseWeight& w, const Matrix& y);
Result<std::shared_ptr<const ConvWeight>> pack_conv(Ops& ops, const ConstMatrix& w,
                                                    std::uint64_t in_channels,
                                                    const ConvOptions& options,
                                                    std::span<const float> bias);
Result<Done> conv2d(Ops& ops, const ConstMatrix& x, ImageSize size, const ConvWeight& w,
                    const Matrix& y);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_OPS_DENSE_H_
