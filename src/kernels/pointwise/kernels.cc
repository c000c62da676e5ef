#include "kernels/pointwise/pointwise.h"

namespace parfait::kernels {

std::span<const PointwiseKernel> pointwise_kernels() {
  static const PointwiseKernel list[] = {
#if defined(__x86_64__)
    pointwise_avx512_vnni,
    pointwise_avx2,
#endif
    pointwise_reference
  };
  return list;
}

}  // namespace parfait::kernels
