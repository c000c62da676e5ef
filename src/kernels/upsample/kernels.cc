#include "kernels/upsample/upsample.h"

namespace parfait::kernels {

std::span<const UpsampleKernel> upsample_kernels() {
  static const UpsampleKernel list[] = {
#if defined(__x86_64__)
    upsample_avx512_vnni,
    upsample_avx2,
#endif
    upsample_reference
  };
  return list;
}

}  // namespace parfait::kernels
