#include "kernels/rope/rope.h"

#if defined(__x86_64__)

#include "kernels/simd/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx2;
#include "kernels/rope/rope.inc"

}  // namespace

const RopeKernel rope_avx2 = {"rope.avx2", Isa::avx2, rope};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
