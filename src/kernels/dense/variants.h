// The variants that the lists in kernels.cc name.
#ifndef PARFAIT_KERNELS_DENSE_VARIANTS_H_
#define PARFAIT_KERNELS_DENSE_VARIANTS_H_

#include "kernels/dense/dense.h"

namespace parfait::kernels {

extern const DenseKernel dense_reference;
extern const ConvKernel conv_reference;
#if defined(PARFAIT_ONEDNN)
extern const DenseKernel dense_onednn;
extern const ConvKernel conv_onednn;
extern const Bf16Kernel bf16_onednn;
#endif

// Shared by the variants. Rows of a matrix one behind the other, as floats or as they are; and the
// other way round, floats rounded or values of y's type as a part of y.
void widen_rows(const ConstMatrix& from, std::uint64_t first, std::uint64_t last, float* to);
void copy_rows(const ConstMatrix& from, std::uint64_t first, std::uint64_t last, std::byte* to);
void store_rows(const float* from, const Matrix& to, std::uint64_t m0, std::uint64_t m1,
                std::uint64_t n0, std::uint64_t n1);
void place_rows(const std::byte* from, const Matrix& to, std::uint64_t m0, std::uint64_t m1,
                std::uint64_t n0, std::uint64_t n1);
bool pack_plain(const ConstMatrix& w, PackedDense& out);

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_DENSE_VARIANTS_H_
