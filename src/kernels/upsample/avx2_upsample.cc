#include "kernels/upsample/upsample.h"

#if defined(__x86_64__)

#include <cstring>

#include "kernels/simd/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx2;
#include "kernels/upsample/upsample.inc"

}  // namespace

const UpsampleKernel upsample_avx2 = {"upsample.avx2", Isa::avx2, upsample};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
