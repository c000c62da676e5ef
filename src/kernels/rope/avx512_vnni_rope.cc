#include "kernels/rope/rope.h"

#if defined(__x86_64__)

#include "kernels/simd/avx512_vnni.h"

// clang-format off: the region starts behind all headers
#include "kernels/avx512_vnni_begin.inc"
// clang-format on

namespace parfait::kernels {
namespace {

using namespace simd::avx512;
#include "kernels/rope/rope.inc"

}  // namespace

const RopeKernel rope_avx512_vnni = {"rope.avx512_vnni", Isa::avx512_vnni, rope};

}  // namespace parfait::kernels

#include "kernels/avx512_vnni_end.inc"

#endif  // __x86_64__
