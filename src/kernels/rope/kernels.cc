#include "kernels/rope/rope.h"

namespace parfait::kernels {

std::span<const RopeKernel> rope_kernels() {
  static const RopeKernel list[] = {
#if defined(__x86_64__)
    rope_avx512_vnni,
    rope_avx2,
#endif
    rope_reference
  };
  return list;
}

}  // namespace parfait::kernels
