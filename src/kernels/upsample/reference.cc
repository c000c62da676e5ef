#include <cstddef>
#include <cstring>

#include "kernels/upsample/upsample.h"

namespace parfait::kernels {
namespace {

void copy_pixel(const ConstMatrix& x, std::uint64_t from, const Matrix& y, std::uint64_t to) {
  const auto* in = static_cast<const std::byte*>(x.data);
  auto* out = static_cast<std::byte*>(y.data);
  const std::uint64_t size = dtype_bits(x.dtype) / 8;
  if (x.dtype == y.dtype) {
    std::memcpy(out + to * y.stride * size, in + from * x.stride * size, x.columns * size);
    return;
  }
  for (std::uint64_t c = 0; c < x.columns; ++c)
    store_float(y.dtype, out, to * y.stride + c, load_float(x.dtype, in, from * x.stride + c));
}

void upsample(const ConstMatrix& x, std::uint64_t width, std::uint64_t factor, std::uint64_t first,
              std::uint64_t last, const Matrix& y) {
  for (std::uint64_t r = first * factor; r < last * factor; ++r)
    for (std::uint64_t p = 0; p < width * factor; ++p)
      copy_pixel(x, r / factor * width + p / factor, y, r * width * factor + p);
}

}  // namespace

const UpsampleKernel upsample_reference = {"upsample.reference", Isa::reference, upsample};

}  // namespace parfait::kernels
