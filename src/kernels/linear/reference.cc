// The integer linear layer, plainly: what every other variant must equal, bit for bit.
//
//   x [M, K]   activation          W [N, K]   weight codes      s_w [N]  weight scales
//   r = x·H    rotated by groups   c [M, K]   activation codes  s_x [M]  activation scales

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/checked.h"
#include "base/floats.h"
#include "base/hadamard.h"
#include "kernels/linear/variants.h"

namespace parfait::kernels {
namespace {

struct CodeRange {
  float largest, lo, hi;
};
CodeRange code_range(Activation mode) {
  return mode == Activation::int8 ? CodeRange{127, -128, 127} : CodeRange{7, -7, 7};
}

void quantize(const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
              std::uint64_t rotate_group, Activation mode, QuantizedRows& out) {
  const CodeRange range = code_range(mode);
  const std::uint64_t K = x.columns;
  std::vector<float> r(K);
  for (std::uint64_t m = first; m < last; ++m) {
    for (std::uint64_t k = 0; k < K; ++k)
      r[k] = load_float(x.dtype, static_cast<const std::byte*>(x.data), m * x.stride + k);
    if (rotate_group) rotate_groups(r, rotate_group);
    float absmax = 0;
    bool finite = true;
    for (float value : r) {
      finite = finite && std::isfinite(value);
      absmax = std::max(absmax, std::fabs(value));
    }
    auto* c = reinterpret_cast<std::int8_t*>(out.codes.data()) + m * out.stride;
    std::fill_n(c, out.stride, std::int8_t{0});
    out.sums[m] = 0;
    if (!finite) {
      out.scales[m] = std::numeric_limits<float>::quiet_NaN();
      continue;
    }
    const float s_x = std::max(absmax / range.largest, 1e-30f);
    for (std::uint64_t k = 0; k < K; ++k) {
      c[k] = static_cast<std::int8_t>(std::clamp(std::nearbyint(r[k] / s_x), range.lo, range.hi));
      out.sums[m] += c[k];
    }
    out.scales[m] = s_x;
  }
}

std::uint64_t packed_int8(std::uint64_t rows, std::uint64_t columns) { return rows * columns; }
std::uint64_t packed_int4(std::uint64_t rows, std::uint64_t columns) {
  return rows * (columns / 2);
}

void pack_int8(const Int8Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  std::copy(w.codes + n0 * w.columns, w.codes + n1 * w.columns, out + n0 * w.columns);
}
void pack_int4(const Int4Weight& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t bytes = Int4Weight::row_bytes(w.columns);
  std::copy(w.codes + n0 * bytes, w.codes + n1 * bytes, out + n0 * bytes);
}

// code(n, k): the weight's code.
template <class Code>
void multiply(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0, std::uint64_t m1,
              std::uint64_t n0, std::uint64_t n1, const Matrix& y, Code code) {
  for (std::uint64_t m = m0; m < m1; ++m) {
    const auto* c = reinterpret_cast<const std::int8_t*>(x.codes.data()) + m * x.stride;
    for (std::uint64_t n = n0; n < n1; ++n) {
      std::int32_t a = 0;
      for (std::uint64_t k = 0; k < w.columns; ++k) a += c[k] * code(n, k);
      float value = static_cast<float>(a) * (x.scales[m] * w.scales[n]);
      if (!w.bias.empty()) value = value + w.bias[n];
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + n, value);
    }
  }
}

void multiply_int8(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y) {
  const auto* codes = reinterpret_cast<const std::int8_t*>(w.codes.data());
  multiply(w, x, m0, m1, n0, n1, y,
           [&](std::uint64_t n, std::uint64_t k) { return int{codes[n * w.columns + k]}; });
}
void multiply_int4(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0,
                   std::uint64_t m1, std::uint64_t n0, std::uint64_t n1, const Matrix& y) {
  const std::uint64_t bytes = Int4Weight::row_bytes(w.columns);
  multiply(w, x, m0, m1, n0, n1, y, [&](std::uint64_t n, std::uint64_t k) {
    return int4_code(w.codes.data() + n * bytes, k);
  });
}

void multiply_float(const float* x, std::uint64_t ldx, std::uint64_t m0, std::uint64_t m1,
                    const float* w, std::uint64_t n0, std::uint64_t n1, std::uint64_t columns,
                    const float* bias, const Matrix& y) {
  constexpr std::size_t lanes = 16;
  for (std::uint64_t n = n0; n < n1; ++n) {
    const float* row = w + (n - n0) * columns;
    for (std::uint64_t m = m0; m < m1; ++m) {
      const float* in = x + m * ldx;
      float partial[lanes] = {};
      std::uint64_t k = 0;
      for (; k + lanes <= columns; k += lanes)
        for (std::size_t i = 0; i < lanes; ++i) partial[i] += in[k + i] * row[k + i];
      for (std::size_t i = 0; k + i < columns; ++i) partial[i] += in[k + i] * row[k + i];
      for (std::size_t width = 1; width < lanes; width *= 2)
        for (std::size_t i = 0; i < lanes; i += 2 * width) partial[i] += partial[i + width];
      const float value = bias ? partial[0] + bias[n] : partial[0];
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + n, value);
    }
  }
}

}  // namespace

const QuantizeKernel quantize_reference = {"quantize.reference", Isa::reference, quantize};
const LinearKernel int8_reference = {"int8.reference", Isa::reference, 1, packed_int8, pack_int8,
                                     nullptr,          multiply_int8};
const LinearKernel int4_reference = {"int4.reference", Isa::reference, 1, packed_int4, nullptr,
                                     pack_int4,        multiply_int4};
const FloatKernel float_reference = {"decode.reference", Isa::reference, multiply_float};

}  // namespace parfait::kernels
