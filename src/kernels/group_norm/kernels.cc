#include "kernels/group_norm/group_norm.h"

namespace parfait::kernels {

std::span<const GroupNormKernel> group_norm_kernels() {
  static const GroupNormKernel list[] = {
#if defined(__x86_64__)
    group_norm_avx512_vnni,
    group_norm_avx2,
#endif
    group_norm_reference
  };
  return list;
}

}  // namespace parfait::kernels
