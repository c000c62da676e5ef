// What the tests of the row-wise and image kernels share, beside kernels/linear/linear_testing.h:
// awkward values, outputs that notice strange writes, and comparison. Tests only.
#ifndef PARFAIT_KERNELS_SIMD_ROWS_TESTING_H_
#define PARFAIT_KERNELS_SIMD_ROWS_TESTING_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels::testing {

// Lengths around the width of every vector, and some longer ones.
inline std::vector<std::uint64_t> awkward_lengths() {
  std::vector<std::uint64_t> lengths = {47, 48, 63, 64, 65, 80, 127, 129, 300};
  for (std::uint64_t n = 1; n <= 34; ++n) lengths.push_back(n);
  return lengths;
}

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr auto signalling =
    std::bit_cast<float>(0x7f800001u);  // its upper half is infinity's
inline constexpr float awkward_values[] = {
    0.0f,    -0.0f,    infinity,  -infinity, NAN,    3e38f,   -3e38f,  1e-38f, -1e-38f,   1e-42f,
    -1e-45f, 65504.0f, -65520.0f, 88.8f,     -88.8f, -104.5f, 6.1e-5f, 1.0f,   signalling};

// Replaces about one value in `every` by an awkward one.
inline void make_awkward(std::mt19937& random, TestActivation& x, unsigned every) {
  for (std::uint64_t m = 0; m < x.view.rows; ++m)
    for (std::uint64_t c = 0; c < x.view.columns; ++c)
      if (random() % every == 0) x.set(m, c, awkward_values[random() % std::size(awkward_values)]);
}

inline std::vector<float> make_vector(std::mt19937& random, std::uint64_t size) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(size);
  for (float& v : values) v = normal(random);
  return values;
}

// An output at an odd address, whose rows start apart; what lies between them must stay.
struct TestOutput {
  std::vector<std::byte> bytes;
  Matrix view;

  TestOutput(DType dtype, std::uint64_t rows, std::uint64_t columns, std::uint64_t gap = 5)
      : bytes(rows * (columns + gap) * (dtype_bits(dtype) / 8) + 1, std::byte{0x5a}),
        view{bytes.data() + 1, dtype, rows, columns, columns + gap} {}
  TestOutput(const TestOutput&) = delete;
  TestOutput& operator=(const TestOutput&) = delete;

  float at(std::uint64_t m, std::uint64_t c) const {
    return load_float(view.dtype, bytes.data() + 1, m * view.stride + c);
  }
  void expect_gaps_untouched(std::string_view name) const {
    const std::uint64_t size = dtype_bits(view.dtype) / 8;
    EXPECT_EQ(bytes[0], std::byte{0x5a}) << name << ": wrote before the first row";
    for (std::uint64_t m = 0; m < view.rows; ++m)
      for (std::uint64_t i = (m * view.stride + view.columns) * size;
           i < (m + 1) * view.stride * size; ++i)
        ASSERT_EQ(bytes[1 + i], std::byte{0x5a}) << name << ": wrote behind row " << m;
  }
};

// Bit for bit, but any NaN equals any other.
inline bool same(float a, float b) {
  return (std::isnan(a) && std::isnan(b)) ||
         std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
}

inline void expect_same(const TestOutput& got, const TestOutput& want, const std::string& what) {
  got.expect_gaps_untouched(what);
  for (std::uint64_t m = 0; m < want.view.rows; ++m)
    for (std::uint64_t c = 0; c < want.view.columns; ++c)
      ASSERT_TRUE(same(got.at(m, c), want.at(m, c)))
          << what << " at " << m << ", " << c << ": " << got.at(m, c) << " and " << want.at(m, c);
}

// The distance in units of the last place of the right value, which is taken as at least as large
// as `smallest`.
inline double ulps(float got, double want, double smallest = 0x1p-126) {
  if (std::isnan(want)) return std::isnan(got) ? 0 : HUGE_VAL;
  if (std::isinf(want) || std::isinf(got)) return double{got} == want ? 0 : HUGE_VAL;
  const double size = std::max(std::fabs(want), smallest);
  return std::fabs(double{got} - want) / std::ldexp(1.0, std::ilogb(size) - 23);
}

}  // namespace parfait::kernels::testing

#endif  // PARFAIT_KERNELS_SIMD_ROWS_TESTING_H_
