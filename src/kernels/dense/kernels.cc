#include <cstring>

#include "base/bytes.h"
#include "base/floats.h"
#include "kernels/dense/variants.h"

namespace parfait::kernels {

std::span<const DenseKernel> dense_kernels() {
  static const DenseKernel list[] = {
#if defined(PARFAIT_ONEDNN)
    dense_onednn,
#endif
    dense_reference
  };
  return list;
}

std::span<const ConvKernel> conv_kernels() {
  static const ConvKernel list[] = {
#if defined(PARFAIT_ONEDNN)
    conv_onednn,
#endif
    conv_reference
  };
  return list;
}

void widen_rows(const ConstMatrix& from, std::uint64_t first, std::uint64_t last, float* to) {
  const std::uint64_t size = dtype_bits(from.dtype) / 8;
  for (std::uint64_t m = first; m < last; ++m, to += from.columns) {
    const std::byte* row = static_cast<const std::byte*>(from.data) + m * from.stride * size;
    switch (from.dtype) {
      case DType::bf16:
        for (std::uint64_t k = 0; k < from.columns; ++k)
          to[k] = bf16_to_float(load_at<std::uint16_t>(row, k));
        break;
      case DType::f16:
        for (std::uint64_t k = 0; k < from.columns; ++k)
          to[k] = f16_to_float(load_at<std::uint16_t>(row, k));
        break;
      default:
        std::memcpy(to, row, from.columns * sizeof(float));
    }
  }
}

void store_rows(const float* from, const Matrix& to, std::uint64_t m0, std::uint64_t m1,
                std::uint64_t n0, std::uint64_t n1) {
  for (std::uint64_t m = m0; m < m1; ++m)
    for (std::uint64_t n = n0; n < n1; ++n)
      store_float(to.dtype, static_cast<std::byte*>(to.data), m * to.stride + n, *from++);
}

bool pack_plain(const ConstMatrix& w, PackedDense& out) {
  const std::uint64_t size = dtype_bits(w.dtype) / 8;
  out.dtype = w.dtype;
  out.rows = w.rows;
  out.columns = w.columns;
  out.plain = AlignedBytes(w.rows * w.columns * size);
  for (std::uint64_t n = 0; n < w.rows; ++n)
    std::memcpy(out.plain.data() + n * w.columns * size,
                static_cast<const std::byte*>(w.data) + n * w.stride * size, w.columns * size);
  return true;
}

}  // namespace parfait::kernels
