#include "kernels/pointwise/pointwise.h"

#if defined(__x86_64__)

#include "kernels/simd/avx2.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx2_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx2;
#include "kernels/pointwise/pointwise.inc"

}  // namespace

const PointwiseKernel pointwise_avx2 = {"pointwise.avx2", Isa::avx2, unary, gate, add};

}  // namespace parfait::kernels

#include "kernels/avx2_end.inc"

#endif  // __x86_64__
