// The lists of variants, fastest first, and the containers that all of them share.

#include <algorithm>
#include <new>

#include "base/checked.h"
#include "kernels/linear/variants.h"

namespace parfait::kernels {

std::span<const QuantizeKernel> quantize_kernels() {
  static const QuantizeKernel list[] = {
#if defined(__x86_64__)
    quantize_avx512_vnni,
#endif
    quantize_reference
  };
  return list;
}

std::span<const LinearKernel> int8_kernels() {
  static const LinearKernel list[] = {
#if defined(__x86_64__)
    int8_avx512_vnni,
#endif
    int8_reference
  };
  return list;
}

std::span<const LinearKernel> int4_kernels() {
  static const LinearKernel list[] = {
#if defined(__x86_64__)
    int4_avx512_vnni,
#endif
    int4_reference
  };
  return list;
}

std::span<const FloatKernel> float_kernels() {
  static const FloatKernel list[] = {
#if defined(__x86_64__)
    float_avx512_vnni,
#endif
    float_reference
  };
  return list;
}

constexpr std::align_val_t alignment{64};

AlignedBytes::AlignedBytes(std::size_t size)
    : data_(static_cast<std::byte*>(::operator new[](std::max<std::size_t>(size, 1), alignment))),
      size_(size) {
  std::fill_n(data_.get(), size_, std::byte{0});
}

void AlignedBytes::Free::operator()(std::byte* p) const { ::operator delete[](p, alignment); }

std::uint64_t PackedWeight::bytes() const {
  return codes.size() + 4 * (scales.size() + bias.size());
}

void QuantizedRows::resize(std::uint64_t new_rows, std::uint64_t new_columns) {
  rows = new_rows;
  columns = new_columns;
  stride = round_up(columns, 64);
  // Every byte of a row is written by the quantiser, its padding included, so old contents don't
  // matter.
  if (codes.size() < rows * stride) codes = AlignedBytes(rows * stride);
  scales.resize(rows);
  sums.resize(rows);
}

}  // namespace parfait::kernels
