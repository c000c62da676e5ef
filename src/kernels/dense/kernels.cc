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

std::span<const Bf16Kernel> bf16_kernels() {
#if defined(PARFAIT_ONEDNN)
  return {&bf16_onednn, 1};
#else
  return {};
#endif
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

void copy_rows(const ConstMatrix& from, std::uint64_t first, std::uint64_t last, std::byte* to) {
  const std::uint64_t size = dtype_bits(from.dtype) / 8, bytes = from.columns * size;
  if (bytes == 0) return;  // there may be no data then, not even an address
  for (std::uint64_t m = first; m < last; ++m, to += bytes)
    std::memcpy(to, static_cast<const std::byte*>(from.data) + m * from.stride * size, bytes);
}

void store_rows(const float* from, const Matrix& to, std::uint64_t m0, std::uint64_t m1,
                std::uint64_t n0, std::uint64_t n1) {
  auto* data = static_cast<std::byte*>(to.data);
  for (std::uint64_t m = m0; m < m1; ++m, from += n1 - n0) {
    if (to.dtype == DType::bf16) {
      std::byte* row = data + (m * to.stride + n0) * sizeof(std::uint16_t);
      for (std::uint64_t i = 0; i < n1 - n0; ++i) store_at(row, i, float_to_bf16(from[i]));
    } else {
      for (std::uint64_t i = 0; i < n1 - n0; ++i)
        store_float(to.dtype, data, m * to.stride + n0 + i, from[i]);
    }
  }
}

void place_rows(const std::byte* from, const Matrix& to, std::uint64_t m0, std::uint64_t m1,
                std::uint64_t n0, std::uint64_t n1) {
  const std::uint64_t size = dtype_bits(to.dtype) / 8, bytes = (n1 - n0) * size;
  for (std::uint64_t m = m0; m < m1; ++m, from += bytes)
    std::memcpy(static_cast<std::byte*>(to.data) + (m * to.stride + n0) * size, from, bytes);
}

bool pack_plain(const ConstMatrix& w, PackedDense& out) {
  out.dtype = w.dtype;
  out.rows = w.rows;
  out.columns = w.columns;
  out.plain = AlignedBytes(w.rows * w.columns * (dtype_bits(w.dtype) / 8));
  copy_rows(w, 0, w.rows, out.plain.data());
  return true;
}

}  // namespace parfait::kernels
