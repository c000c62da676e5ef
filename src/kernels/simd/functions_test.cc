// exp, SiLU and GELU against libm in double, over all floats in steps. The bounds are what was
// measured over every 61st float, with a little room. Vectors against these functions:
// kernels/pointwise/pointwise_test.cc.

#include "kernels/simd/functions.h"

#include <gtest/gtest.h>

#include <numbers>

#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using testing::infinity;
using testing::ulps;

// Calls see(x) for every 4099th float but NaN and the infinities.
template <class See>
void for_floats(See see) {
  for (std::uint64_t bits = 0; bits < (std::uint64_t{1} << 32); bits += 4099) {
    const auto x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(x)) see(x);
  }
}

TEST(Functions, exp_is_within_one_ulp) {
  double worst = 0;
  for_floats([&](float x) {
    const double want = std::exp(double{x});
    const float got = simd::exp(x);
    if (want >= 0x1.ffffffp+127)  // rounds to infinity
      ASSERT_EQ(got, infinity) << x;
    else
      ASSERT_LE(ulps(got, want), 1.0) << x;
    if (std::isfinite(got)) worst = std::max(worst, ulps(got, want));
  });
  EXPECT_GT(worst, 0.4);  // the comparison sees roundings
  EXPECT_EQ(simd::exp(0.0f), 1.0f);
  EXPECT_EQ(simd::exp(-0.0f), 1.0f);
  EXPECT_EQ(simd::exp(infinity), infinity);
  EXPECT_EQ(simd::exp(-infinity), 0.0f);
  EXPECT_TRUE(std::isnan(simd::exp(NAN)));
  EXPECT_EQ(simd::exp(88.72284f), std::exp(88.72284f));  // just below overflow
  EXPECT_EQ(simd::exp(88.7229f), infinity);
  EXPECT_EQ(simd::exp(-103.9f), 0x1p-149f);
  EXPECT_EQ(simd::exp(-103.98f), 0.0f);
  EXPECT_EQ(simd::exp(-87.5f), static_cast<float>(std::exp(-87.5)));  // subnormal
}

TEST(Functions, silu_is_within_three_ulps) {
  for_floats([](float x) {
    const double want = double{x} / (1 + std::exp(-double{x}));
    if (x >= -88.7f)
      ASSERT_LE(ulps(simd::silu(x), want), 3.0) << x;
    else
      ASSERT_LE(std::fabs(simd::silu(x) - want), 2.7e-37) << x;
  });
}

TEST(Functions, gelu_erf_is_within_ten_ulps) {
  for_floats([](float x) {
    const double want = 0.5 * x * std::erfc(-x * std::numbers::sqrt2 / 2);
    // h is subnormal from a = 13.1 on, and x · h has its few digits.
    if (x >= -13.0f)
      ASSERT_LE(ulps(simd::gelu_erf(x), want), 10.0) << x;
    else
      ASSERT_LE(std::fabs(simd::gelu_erf(x) - want), 2e-44) << x;
  });
}

// The argument of exp is rounded three times; far down, that is where the digits go.
TEST(Functions, gelu_tanh_is_within_what_its_argument_loses) {
  for_floats([](float x) {
    const double u = std::sqrt(2 * std::numbers::inv_pi) * (x + 0.044715 * std::pow(double{x}, 3));
    const double want =
        x > -2 ? 0.5 * x * (1 + std::tanh(u)) : x * std::exp(2 * u) / (1 + std::exp(2 * u));
    if (x >= -10.0f)
      ASSERT_LE(ulps(simd::gelu_tanh(x), want), 4 + 3 * std::fabs(std::min(0.0, 2 * u))) << x;
    else
      ASSERT_LE(std::fabs(simd::gelu_tanh(x) - want), 5e-37) << x;
  });
}

TEST(Functions, special_values) {
  for (auto* f : {simd::silu, simd::gelu_erf, simd::gelu_tanh}) {
    EXPECT_TRUE(std::isnan(f(NAN)));
    EXPECT_TRUE(std::isnan(f(-infinity)));
    EXPECT_EQ(f(infinity), infinity);
    EXPECT_EQ(f(0.0f), 0.0f);
    EXPECT_FALSE(std::signbit(f(0.0f)));
    EXPECT_TRUE(std::signbit(f(-0.0f)));
    EXPECT_EQ(f(3e38f), 3e38f);
    EXPECT_EQ(f(-3e38f), 0.0f);
  }
}

}  // namespace
}  // namespace parfait::kernels
