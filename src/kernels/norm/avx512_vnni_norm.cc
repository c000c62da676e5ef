#include "kernels/norm/norm.h"

#if defined(__x86_64__)

#include "kernels/simd/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx512;
#include "kernels/norm/norm.inc"

}  // namespace

const NormKernel norm_avx512_vnni = {"norm.avx512_vnni", Isa::avx512_vnni, norm};

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
