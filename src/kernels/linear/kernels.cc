// The lists of variants, fastest first, and the containers that all of them share.

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <algorithm>
#include <new>

#include "base/checked.h"
#include "kernels/linear/variants.h"

namespace parfait::kernels {

std::span<const QuantizeKernel> quantize_kernels() {
  static const QuantizeKernel list[] = {
#if defined(__x86_64__)
    quantize_avx512_vnni,
    quantize_avx2,
#endif
    quantize_reference
  };
  return list;
}

std::span<const LinearKernel> linear_kernels(WeightCode code) {
#if defined(__x86_64__)
#define PARFAIT_VARIANTS(code) \
  { code##_avx512_vnni, code##_avx_vnni, code##_avx2, code##_reference }
#elif defined(__aarch64__)
#define PARFAIT_VARIANTS(code) \
  { code##_neon_i8mm, code##_neon_dotprod, code##_reference }
#else
#define PARFAIT_VARIANTS(code) \
  { code##_reference }
#endif
  static const LinearKernel int8[] = PARFAIT_VARIANTS(int8);
  static const LinearKernel int4[] = PARFAIT_VARIANTS(int4);
  static const LinearKernel w4a8[] = PARFAIT_VARIANTS(w4a8);
  static const LinearKernel w6a8[] = PARFAIT_VARIANTS(w6a8);
#undef PARFAIT_VARIANTS
  switch (code) {
    case WeightCode::int8:
      return int8;
    case WeightCode::int4:
      return int4;
    case WeightCode::w4a8:
      return w4a8;
    case WeightCode::w6a8:
      return w6a8;
  }
  return {};
}

std::span<const FloatKernel> float_kernels() {
  static const FloatKernel list[] = {
#if defined(__x86_64__)
    float_avx512_vnni,
    float_avx2,
#endif
    float_reference
  };
  return list;
}

namespace {

// Large blocks start at a boundary of huge pages and ask for them: a panel is read from end to end,
// and its pages would take the address translation's cache from the activation's.
constexpr std::size_t huge_page = std::size_t{2} << 20;
constexpr std::align_val_t alignment_of(std::size_t size) {
  return std::align_val_t{size >= 2 * huge_page ? huge_page : 64};
}

}  // namespace

AlignedBytes::AlignedBytes(std::size_t size)
    : data_(static_cast<std::byte*>(
                ::operator new[](std::max<std::size_t>(size, 1), alignment_of(size))),
            Free{size}),
      size_(size) {
#if defined(__linux__)
  // A hint: where it is refused, small pages serve.
  if (size >= 2 * huge_page) madvise(data_.get(), size / huge_page * huge_page, MADV_HUGEPAGE);
#endif
  std::fill_n(data_.get(), size_, std::byte{0});
}

void AlignedBytes::Free::operator()(std::byte* p) const {
  ::operator delete[](p, alignment_of(size));
}

std::uint64_t PackedWeight::bytes() const {
  return codes.size() + tables.size() + 4 * (scales.size() + bias.size());
}

void QuantizedRows::resize(std::uint64_t new_rows, std::uint64_t new_columns) {
  rows = new_rows;
  columns = new_columns;
  stride = round_up(columns, 64);
  // Rows a multiple of 512 bytes apart would share a few sets of the first-level cache.
  if (stride % 512 == 0) stride += 64;
  // Every byte of a row is written by the quantiser, its padding included, so old contents don't
  // matter.
  if (codes.size() < rows * stride) codes = AlignedBytes(rows * stride);
  scales.resize(rows);
  sums.resize(rows);
}

}  // namespace parfait::kernels
