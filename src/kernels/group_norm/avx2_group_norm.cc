#include "kernels/group_norm/group_norm.h"

#if defined(__x86_64__)

#include "kernels/simd/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx2;
#include "kernels/group_norm/group_norm.inc"

}  // namespace

const GroupNormKernel group_norm_avx2 = {"group_norm.avx2", Isa::avx2, sums, squares, normalise};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
