#include "kernels/norm/norm.h"

namespace parfait::kernels {

std::span<const NormKernel> norm_kernels() {
  static const NormKernel list[] = {
#if defined(__x86_64__)
    norm_avx512_vnni,
    norm_avx2,
#endif
    norm_reference
  };
  return list;
}

}  // namespace parfait::kernels
