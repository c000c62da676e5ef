// What the tests of the linear kernels share: activations and weights with all that is awkward
// about them, and one call for each step. Tests only.
#ifndef PARFAIT_KERNELS_LINEAR_LINEAR_TESTING_H_
#define PARFAIT_KERNELS_LINEAR_LINEAR_TESTING_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "base/floats.h"
#include "formats/convrot_w4a4/layout.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/widen.h"

namespace parfait::kernels::testing {

inline constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

inline bool runs_here(Isa isa) {
  const auto isas = machine_isas();
  return std::ranges::find(isas, isa) != isas.end();
}

// The variants of a list that this machine can run, but for the reference, which is the last.
template <class Kernel>
std::vector<Kernel> variants(std::span<const Kernel> list) {
  std::vector<Kernel> found;
  for (const Kernel& kernel : list)
    if (kernel.isa != Isa::reference && runs_here(kernel.isa)) found.push_back(kernel);
  return found;
}

// The seed of a test: --gtest_random_seed where that is given.
inline std::uint32_t seed_of_run() {
  const auto given = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  return given ? given : 20261201u;
}
inline std::string replay(std::uint32_t seed) {
  return "replay with --gtest_random_seed=" + std::to_string(seed);
}

// An activation whose rows start `gap` elements apart, at an odd address.
struct TestActivation {
  std::vector<std::byte> bytes;
  ConstMatrix view;

  void set(std::uint64_t m, std::uint64_t k, float value) {
    store_float(view.dtype, bytes.data() + 1, m * view.stride + k, value);
  }
  float at(std::uint64_t m, std::uint64_t k) const {
    return load_float(view.dtype, bytes.data() + 1, m * view.stride + k);
  }
};

inline TestActivation make_activation(std::mt19937& random, DType dtype, std::uint64_t rows,
                                      std::uint64_t columns, std::uint64_t gap = 3) {
  TestActivation x;
  const std::uint64_t stride = columns + gap;
  x.bytes.resize(rows * stride * (dtype_bits(dtype) / 8) + 1);
  x.view = {x.bytes.data() + 1, dtype, rows, columns, stride};
  std::normal_distribution<float> normal(0, 1);
  for (std::uint64_t m = 0; m < rows; ++m)
    for (std::uint64_t k = 0; k < columns; ++k) x.set(m, k, normal(random));
  return x;
}

inline QuantizedRows quantize_with(const QuantizeKernel& kernel, const ConstMatrix& x,
                                   std::uint64_t group, Activation mode) {
  QuantizedRows out;
  out.resize(x.rows, x.columns);
  std::fill_n(out.codes.data(), out.codes.size(), std::byte{0x55});  // stale contents
  AlignedBytes scratch(quantize_scratch(x.columns) * sizeof(float));
  kernel.run(x, 0, x.rows, group, mode, out, reinterpret_cast<float*>(scratch.data()));
  return out;
}

inline int code_at(const QuantizedRows& q, std::uint64_t m, std::uint64_t k) {
  return static_cast<std::int8_t>(q.codes.data()[m * q.stride + k]);
}

// A weight with every code, at an odd address. Some rows' scales are zero, denormal or huge. The
// relative scales of w4a8 and w6a8 are any e4m3 values but NaN.
struct TestWeight {
  WeightCode code = WeightCode::int8;
  std::uint64_t rows = 0, columns = 0, scale_group = 0;
  std::vector<std::byte> bytes, relative;
  std::vector<float> scales, bias, levels;

  const std::byte* codes() const { return bytes.data() + 1; }
  WeightView view() const { return {codes(), relative.data(), rows, columns, scale_group}; }
  // The integer that the code stands for.
  int value(std::uint64_t n, std::uint64_t k) const {
    const std::byte* row = codes() + n * row_bytes(code, columns);
    if (code == WeightCode::int8) return static_cast<std::int8_t>(row[k]);
    if (code == WeightCode::int4) return int4_code(row, k);
    const auto scale = relative[n * (columns / scale_group) + k / scale_group];
    return widened(levels[weight_code(code, row, columns, k)],
                   e4m3_to_float(std::to_integer<std::uint8_t>(scale)));
  }
};

enum class Bias { none, present };

inline TestWeight make_weight(std::mt19937& random, WeightCode code, std::uint64_t rows,
                              std::uint64_t columns, Bias bias, std::uint64_t scale_group = 16) {
  TestWeight w;
  w.code = code;
  w.rows = rows;
  w.columns = columns;
  w.bytes.resize(rows * row_bytes(code, columns) + 1);
  for (std::byte& b : w.bytes) b = static_cast<std::byte>(random());
  if (w.bytes.size() > 1)
    w.bytes[1] = std::byte{code == WeightCode::int8 ? std::uint8_t{0x80} : std::uint8_t{0x88}};
  if (const std::uint64_t levels = level_count(code)) {
    w.scale_group = scale_group;
    w.relative.resize(rows * (columns / scale_group));
    for (std::byte& s : w.relative) do
        s = static_cast<std::byte>(random() & 0xff);
      while ((s & std::byte{0x7f}) == std::byte{0x7f});
    std::uniform_real_distribution<float> level(-40, 40);
    for (std::uint64_t i = 0; i < levels; ++i)
      w.levels.push_back(code == WeightCode::w6a8 ? static_cast<float>(i) - 32
                         : columns % 3 == 0       ? level(random)
                                                  : static_cast<float>(i) - 8);
  }
  std::uniform_real_distribution<float> scale(1e-4f, 2e-2f);
  for (std::uint64_t n = 0; n < rows; ++n) {
    w.scales.push_back(n % 7 == 3     ? 0.0f
                       : n % 11 == 5  ? 1e30f
                       : n % 13 == 12 ? 1e-41f
                                      : scale(random));
    if (bias == Bias::present) w.bias.push_back(scale(random) - 0.01f);
  }
  return w;
}

// Packs rows in pieces of `step`; 0: all at once.
inline PackedWeight pack(const LinearKernel& kernel, const TestWeight& w, std::uint64_t step = 0) {
  PackedWeight packed;
  packed.rows = w.rows;
  packed.columns = w.columns;
  packed.scale_group = w.scale_group;
  packed.scales = w.scales;
  packed.bias = w.bias;
  if (!w.levels.empty()) packed.tables = widening_tables(w.levels, kernel.table_bits);
  packed.codes = AlignedBytes(kernel.packed_bytes(w.rows, w.columns, w.scale_group));
  if (step == 0) step = w.rows;
  for (std::uint64_t n = 0; n < w.rows; n += step)
    kernel.pack(w.view(), n, std::min(n + step, w.rows), packed.codes.data());
  return packed;
}

// How the output is cut into tiles; 0: not at all.
struct Tiles {
  std::uint64_t m_step = 0, n_step = 0;
};

// The bytes of y, at an odd address, with a gap behind each row that must stay as it was.
inline std::vector<std::byte> multiply_with(const LinearKernel& kernel, const PackedWeight& w,
                                            const QuantizedRows& x, DType dtype, Tiles tiles = {}) {
  const std::uint64_t stride = w.rows + 5, size = dtype_bits(dtype) / 8;
  std::vector<std::byte> bytes(x.rows * stride * size + 1, std::byte{0x5a});
  const Matrix y{bytes.data() + 1, dtype, x.rows, w.rows, stride};
  AlignedBytes scratch(kernel.scratch_bytes(w.columns));
  std::fill_n(scratch.data(), scratch.size(), std::byte{0x77});  // stale contents
  if (tiles.m_step == 0) tiles.m_step = x.rows;
  if (tiles.n_step == 0) tiles.n_step = w.rows;
  for (std::uint64_t m = 0; m < x.rows; m += tiles.m_step)
    for (std::uint64_t n = 0; n < w.rows; n += tiles.n_step)
      kernel.multiply(w, x, m, std::min(m + tiles.m_step, x.rows), n,
                      std::min(n + tiles.n_step, w.rows), y, scratch.data());
  for (std::uint64_t m = 0; m < x.rows; ++m)
    for (std::uint64_t i = (m * stride + w.rows) * size; i < (m + 1) * stride * size; ++i)
      EXPECT_EQ(bytes[1 + i], std::byte{0x5a}) << kernel.name << ": wrote between rows";
  return bytes;
}

}  // namespace parfait::kernels::testing

#endif  // PARFAIT_KERNELS_LINEAR_LINEAR_TESTING_H_
