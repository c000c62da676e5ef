// The variants that the lists in kernels.cc name, one declaration a source file.
#ifndef PARFAIT_KERNELS_LINEAR_VARIANTS_H_
#define PARFAIT_KERNELS_LINEAR_VARIANTS_H_

#include "kernels/linear/linear.h"

namespace parfait::kernels {

extern const QuantizeKernel quantize_reference;
extern const LinearKernel int8_reference, int4_reference, w4a8_reference, w6a8_reference;
extern const FloatKernel float_reference;

#if defined(__x86_64__)
extern const QuantizeKernel quantize_avx512_vnni, quantize_avx2;
extern const LinearKernel int8_avx512_vnni, int4_avx512_vnni, w4a8_avx512_vnni, w6a8_avx512_vnni;
extern const LinearKernel int8_avx_vnni, int4_avx_vnni, w4a8_avx_vnni, w6a8_avx_vnni;
extern const LinearKernel int8_avx2, int4_avx2, w4a8_avx2, w6a8_avx2;
extern const FloatKernel float_avx512_vnni, float_avx2;
#elif defined(__aarch64__)
extern const QuantizeKernel quantize_neon_dotprod;
extern const LinearKernel int8_neon_i8mm, int4_neon_i8mm, w4a8_neon_i8mm, w6a8_neon_i8mm;
extern const LinearKernel int8_neon_dotprod, int4_neon_dotprod, w4a8_neon_dotprod,
    w6a8_neon_dotprod;
extern const FloatKernel float_neon_dotprod;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_LINEAR_VARIANTS_H_
