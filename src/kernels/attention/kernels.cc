#include "kernels/attention/variants.h"

namespace parfait::kernels {

std::span<const AttentionKernel> attention_kernels() {
  static const AttentionKernel list[] = {
#if defined(__x86_64__)
    attention_avx512_bf16,
    attention_avx512_vnni,
    attention_avx2,
#endif
    attention_reference
  };
  return list;
}

}  // namespace parfait::kernels
