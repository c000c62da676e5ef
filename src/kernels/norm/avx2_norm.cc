#include "kernels/norm/norm.h"

#if defined(__x86_64__)

#include "kernels/simd/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx2;
#include "kernels/norm/norm.inc"

}  // namespace

const NormKernel norm_avx2 = {"norm.avx2", Isa::avx2, norm};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
