// The variants that the list in kernels.cc names, one a source file.
#ifndef PARFAIT_KERNELS_ATTENTION_VARIANTS_H_
#define PARFAIT_KERNELS_ATTENTION_VARIANTS_H_

#include "kernels/attention/attention.h"

namespace parfait::kernels {

extern const AttentionKernel attention_reference;
#if defined(__x86_64__)
extern const AttentionKernel attention_avx512_bf16, attention_avx512_vnni, attention_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_ATTENTION_VARIANTS_H_
