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
#include "formats/convrot_w4a4/layout.h"
#include "kernels/linear/variants.h"
#include "kernels/linear/widen.h"

namespace parfait::kernels {
namespace {

struct CodeRange {
  float largest, lo, hi;
};
CodeRange code_range(Activation mode) {
  return mode == Activation::int8 ? CodeRange{127, -128, 127} : CodeRange{7, -7, 7};
}

void quantize(const ConstMatrix& x, std::uint64_t first, std::uint64_t last,
              std::uint64_t rotate_group, Activation mode, QuantizedRows& out, float* scratch) {
  const CodeRange range = code_range(mode);
  const std::uint64_t K = x.columns;
  const std::span<float> r(scratch, K);
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

// Packed, the weight is as it lies in the file, the relative scales behind all codes.
template <WeightCode code>
std::uint64_t packed_bytes(std::uint64_t rows, std::uint64_t columns, std::uint64_t scale_group) {
  return rows * (row_bytes(code, columns) + (level_count(code) ? columns / scale_group : 0));
}

std::uint64_t no_scratch(std::uint64_t) { return 0; }

template <WeightCode code>
void pack(const WeightView& w, std::uint64_t n0, std::uint64_t n1, std::byte* out) {
  const std::uint64_t bytes = row_bytes(code, w.columns);
  std::copy(w.codes + n0 * bytes, w.codes + n1 * bytes, out + n0 * bytes);
  if (!level_count(code)) return;
  const std::uint64_t groups = w.columns / w.scale_group;
  std::copy(w.relative_scales + n0 * groups, w.relative_scales + n1 * groups,
            out + w.rows * bytes + n0 * groups);
}

// w[n, k]
template <WeightCode code>
int weight_at(const PackedWeight& w, std::uint64_t n, std::uint64_t k) {
  const std::byte* row = w.codes.data() + n * row_bytes(code, w.columns);
  if constexpr (code == WeightCode::int8) return static_cast<std::int8_t>(row[k]);
  if constexpr (code == WeightCode::int4) return int4_code(row, k);
  const std::byte* relative = w.codes.data() + w.rows * row_bytes(code, w.columns);
  const std::uint64_t groups = w.columns / w.scale_group;
  const auto scale = std::to_integer<std::uint64_t>(relative[n * groups + k / w.scale_group]);
  return static_cast<std::int8_t>(
      w.tables.data()[scale * level_count(code) + weight_code(code, row, w.columns, k)]);
}

template <WeightCode code>
void multiply(const PackedWeight& w, const QuantizedRows& x, std::uint64_t m0, std::uint64_t m1,
              std::uint64_t n0, std::uint64_t n1, const Matrix& y, std::byte*) {
  for (std::uint64_t m = m0; m < m1; ++m) {
    const auto* c = reinterpret_cast<const std::int8_t*>(x.codes.data()) + m * x.stride;
    for (std::uint64_t n = n0; n < n1; ++n) {
      std::int32_t a = 0;
      for (std::uint64_t k = 0; k < w.columns; ++k) a += c[k] * weight_at<code>(w, n, k);
      float value = static_cast<float>(a) * (x.scales[m] * w.scales[n]);
      if (!w.bias.empty()) value = value + w.bias[n];
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + n, value);
    }
  }
}

template <WeightCode code>
constexpr LinearKernel linear_kernel(std::string_view name) {
  return {name,       Isa::reference, code,          1, 0, packed_bytes<code>,
          no_scratch, pack<code>,     multiply<code>};
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
        for (std::size_t i = 0; i < lanes; ++i)
          partial[i] = std::fma(in[k + i], row[k + i], partial[i]);
      for (std::size_t i = 0; k + i < columns; ++i)
        partial[i] = std::fma(in[k + i], row[k + i], partial[i]);
      for (std::size_t width = 1; width < lanes; width *= 2)
        for (std::size_t i = 0; i < lanes; i += 2 * width) partial[i] += partial[i + width];
      const float value = bias ? partial[0] + bias[n] : partial[0];
      store_float(y.dtype, static_cast<std::byte*>(y.data), m * y.stride + n, value);
    }
  }
}

}  // namespace

const QuantizeKernel quantize_reference = {"quantize.reference", Isa::reference, quantize};
const LinearKernel int8_reference = linear_kernel<WeightCode::int8>("int8.reference");
const LinearKernel int4_reference = linear_kernel<WeightCode::int4>("int4.reference");
const LinearKernel w4a8_reference = linear_kernel<WeightCode::w4a8>("w4a8.reference");
const LinearKernel w6a8_reference = linear_kernel<WeightCode::w6a8>("w6a8.reference");
const FloatKernel float_reference = {"decode.reference", Isa::reference, multiply_float};

}  // namespace parfait::kernels
