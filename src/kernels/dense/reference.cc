// Dense products and convolutions, plainly.

#include "base/floats.h"
#include "kernels/dense/variants.h"

namespace parfait::kernels {
namespace {

float at(const ConstMatrix& m, std::uint64_t row, std::uint64_t column) {
  return load_float(m.dtype, static_cast<const std::byte*>(m.data), row * m.stride + column);
}

bool multiply(const PackedDense& w, const ConstMatrix& x, std::uint64_t m0, std::uint64_t m1,
              std::uint64_t n0, std::uint64_t n1, const Matrix& y, std::vector<float>&) {
  for (std::uint64_t m = m0; m < m1; ++m) {
    for (std::uint64_t n = n0; n < n1; ++n) {
      float sum = 0;
      for (std::uint64_t k = 0; k < w.columns; ++k)
        sum += at(x, m, k) * load_float(w.dtype, w.plain.data(), n * w.columns + k);
      if (!w.bias.empty()) sum += w.bias[n];
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + n, sum);
    }
  }
  return true;
}

// One output value.
float convolve_at(const PackedConv& w, const ConvShape& shape, const ConstMatrix& x,
                  std::uint64_t oy, std::uint64_t ox, std::uint64_t out) {
  const ConvOptions& o = shape.options;
  const std::uint64_t taps = o.kernel_height * o.kernel_width;
  float sum = 0;
  for (std::uint64_t c = 0; c < shape.in_channels; ++c) {
    for (std::uint64_t i = 0; i < o.kernel_height; ++i) {
      for (std::uint64_t j = 0; j < o.kernel_width; ++j) {
        const std::uint64_t iy = oy * o.stride + i, ix = ox * o.stride + j;
        if (iy < o.pad_top || iy - o.pad_top >= shape.in.height) continue;
        if (ix < o.pad_left || ix - o.pad_left >= shape.in.width) continue;
        const std::uint64_t pixel = (iy - o.pad_top) * shape.in.width + ix - o.pad_left;
        const std::uint64_t tap = i * o.kernel_width + j;
        sum += at(x, pixel, c) *
               load_float(w.dtype, w.plain.data(), (out * shape.in_channels + c) * taps + tap);
      }
    }
  }
  return w.bias.empty() ? sum : sum + w.bias[out];
}

bool convolve(const PackedConv& w, const ConvShape& shape, const ConstMatrix& x, std::uint64_t oy0,
              std::uint64_t oy1, const Matrix& y, std::vector<float>&) {
  for (std::uint64_t oy = oy0; oy < oy1; ++oy)
    for (std::uint64_t ox = 0; ox < shape.out.width; ++ox)
      for (std::uint64_t out = 0; out < shape.out_channels; ++out)
        store_float(y.dtype, static_cast<std::byte*>(y.data),
                    (oy * shape.out.width + ox) * y.stride + out,
                    convolve_at(w, shape, x, oy, ox, out));
  return true;
}

}  // namespace

const DenseKernel dense_reference = {"dense.reference", Isa::reference, pack_plain, multiply};
const ConvKernel conv_reference = {"conv.reference", Isa::reference, convolve};

}  // namespace parfait::kernels
