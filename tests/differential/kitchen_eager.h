// comfy-kitchen's eager linear layers, step by step: everything that lies between two of its
// tensors is rounded to the activation's type T, as PyTorch does. Where this project keeps float
// instead, results differ; these steps are the measure of by how much they may. Tests only.
//
//   x [M, K]  activation, of type T     codes [N, K]  weight     s_w [N]  weight scales
#ifndef PARFAIT_TESTS_DIFFERENTIAL_KITCHEN_EAGER_H_
#define PARFAIT_TESTS_DIFFERENTIAL_KITCHEN_EAGER_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "differential/golden.h"

namespace parfait::kitchen {

struct Layer {
  std::uint64_t rows = 0, columns = 0;
  std::uint64_t rotate_group = 0;  // 0: not rotated
  std::vector<int> codes;
  std::vector<float> scales;  // one a row
  std::vector<float> bias;    // one a row, or none
};

// The nearest value of T, ties to even.
inline double round_to(DType dtype, double value) {
  if (dtype == DType::f32) return static_cast<double>(static_cast<float>(value));
  if (value == 0 || !std::isfinite(value)) return value;
  const double step = golden::step_at(dtype, value);
  const double rounded = std::nearbyint(value / step) * step;
  const double largest = dtype == DType::f16 ? 65504 : 0x1.fep127;
  return std::fabs(rounded) > largest ? std::copysign(INFINITY, value) : rounded;
}

// x · H for each group: a matrix product in T, which is one rounding of the exact sum.
inline std::vector<double> rotate(DType dtype, const std::vector<double>& x, std::uint64_t group) {
  if (group == 0) return x;
  std::vector<double> rotated(x.size());
  const double norm = std::sqrt(static_cast<double>(group));
  for (std::uint64_t start = 0; start < x.size(); start += group) {
    for (std::uint64_t j = 0; j < group; ++j) {
      double sum = 0;
      for (std::uint64_t i = 0; i < group; ++i) {
        int threes = 0;  // digits in base 4 that add up to 3: each turns the sign
        for (std::uint64_t a = i, b = j, g = group; g > 1; a /= 4, b /= 4, g /= 4)
          threes += a % 4 + b % 4 == 3;
        sum += threes % 2 ? -x[start + i] : x[start + i];
      }
      rotated[start + j] = round_to(dtype, sum / norm);
    }
  }
  return rotated;
}

inline double absmax_of(const std::vector<double>& row) {
  double absmax = 0;
  for (double v : row) absmax = std::max(absmax, std::fabs(v));
  return absmax;
}

// Row m of x, rotated.
inline std::vector<double> rotated_row(const golden::Values& x, std::uint64_t m,
                                       const Layer& layer) {
  std::vector<double> row(layer.columns);
  for (std::uint64_t k = 0; k < layer.columns; ++k) row[k] = x.at(m * layer.columns + k);
  return rotate(x.dtype, row, layer.rotate_group);
}

inline double dot(const std::vector<double>& codes, const Layer& layer, std::uint64_t n) {
  double sum = 0;
  for (std::uint64_t k = 0; k < layer.columns; ++k)
    sum += codes[k] * layer.codes[n * layer.columns + k];
  return sum;
}

// quantization.int8_linear
inline std::vector<double> int8_linear(const golden::Values& x, const Layer& layer) {
  const DType T = x.dtype;
  std::vector<double> y;
  for (std::uint64_t m = 0; m < x.count() / layer.columns; ++m) {
    std::vector<double> row = rotated_row(x, m, layer);
    const float scale = std::max(static_cast<float>(absmax_of(row)) / 127.0f, 1e-30f);
    double divisor = round_to(T, static_cast<double>(scale));
    if (divisor == 0) divisor = T == DType::f16 ? 0x1p-14 : 0x1p-126;
    for (double& v : row)
      v = std::fmin(std::fmax(std::nearbyint(round_to(T, v / divisor)), -128), 127);
    for (std::uint64_t n = 0; n < layer.rows; ++n) {
      const float product = static_cast<float>(dot(row, layer, n)) * (scale * layer.scales[n]);
      double value = round_to(T, static_cast<double>(product));
      if (!layer.bias.empty())
        value = round_to(T, value + round_to(T, static_cast<double>(layer.bias[n])));
      y.push_back(value);
    }
  }
  return y;
}

// convrot_w4a4.convrot_w4a4_linear: int4 activations, all of it in T.
inline std::vector<double> int4_linear(const golden::Values& x, const Layer& layer) {
  const DType T = x.dtype;
  std::vector<double> y;
  for (std::uint64_t m = 0; m < x.count() / layer.columns; ++m) {
    std::vector<double> row = rotated_row(x, m, layer);
    const double absmax = std::max(absmax_of(row), round_to(T, 1e-10));
    const double scale = round_to(T, absmax / 7);
    for (double& v : row) {
      v = std::fmin(std::fmax(std::nearbyint(round_to(T, v / scale)), -7), 7);
      if (scale == 0) v = 0;  // 0 / 0, which becomes code 0
    }
    for (std::uint64_t n = 0; n < layer.rows; ++n) {
      double value = round_to(T, dot(row, layer, n));
      value = round_to(T, value * scale);
      value = round_to(T, value * round_to(T, static_cast<double>(layer.scales[n])));
      if (!layer.bias.empty())
        value = round_to(T, value + round_to(T, static_cast<double>(layer.bias[n])));
      y.push_back(value);
    }
  }
  return y;
}

}  // namespace parfait::kitchen

#endif  // PARFAIT_TESTS_DIFFERENTIAL_KITCHEN_EAGER_H_
