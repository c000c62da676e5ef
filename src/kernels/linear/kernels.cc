// The lists of variants, fastest first, and the containers that all of them share.

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
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

#if defined(__linux__)
// Zero pages at a boundary of huge pages. What is mapped around them for the boundary's sake is
// given back.
std::byte* map_pages(std::size_t size) {
  const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  if (size > std::numeric_limits<std::size_t>::max() / 2) throw std::bad_alloc();
  const std::size_t length = round_up(size, page), mapped = length + huge_page;
  void* const got =
      mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (got == MAP_FAILED) throw std::bad_alloc();
  auto* const begin = static_cast<std::byte*>(got);
  const std::size_t over = reinterpret_cast<std::uintptr_t>(begin) % huge_page,
                    before = over == 0 ? 0 : huge_page - over;
  if (before != 0) munmap(begin, before);
  std::byte* const data = begin + before;
  munmap(data + length, mapped - before - length);
  // A hint: where it is refused, small pages serve.
  madvise(data, size / huge_page * huge_page, MADV_HUGEPAGE);
  return data;
}
#endif

}  // namespace

// Large blocks come from the system and go back to it at once: the allocator would keep some of
// what it is given back, and a budget of memory could not be held. They are zero without a touch.
AlignedBytes::AlignedBytes(std::size_t size) : data_(nullptr, Free{size}), size_(size) {
#if defined(__linux__)
  if (size >= 2 * huge_page) {
    data_.reset(map_pages(size));
    return;
  }
#endif
  data_.reset(static_cast<std::byte*>(
      ::operator new[](std::max<std::size_t>(size, 1), alignment_of(size))));
  std::fill_n(data_.get(), size_, std::byte{0});
}

void AlignedBytes::Free::operator()(std::byte* p) const {
#if defined(__linux__)
  if (size >= 2 * huge_page) {
    munmap(p, size);
    return;
  }
#endif
  ::operator delete[](p, alignment_of(size));
}

std::uint64_t PackedWeight::bytes() const {
  return codes.size() + tables.size() + 4 * (scales.size() + bias.size());
}

// Rows a multiple of 512 bytes apart would share a few sets of the first-level cache.
std::uint64_t QuantizedRows::stride_of(std::uint64_t columns) {
  const std::uint64_t stride = round_up(columns, 64);
  return stride % 512 == 0 ? stride + 64 : stride;
}

void QuantizedRows::resize(std::uint64_t new_rows, std::uint64_t new_columns) {
  rows = new_rows;
  columns = new_columns;
  stride = stride_of(columns);
  // Every byte of a row is written by the quantiser, its padding included, so old contents don't
  // matter.
  if (codes.size() < rows * stride) {
    codes = {};  // before the new ones are made: never both
    codes = AlignedBytes(rows * stride);
  }
  scales.resize(rows);
  sums.resize(rows);
}

}  // namespace parfait::kernels
