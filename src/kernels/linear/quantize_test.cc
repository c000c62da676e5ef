// Quantisation: the reference against its formula, every variant against the reference bit for bit.

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/hadamard.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

constexpr Activation modes[] = {Activation::int8, Activation::int4};
const QuantizeKernel& reference() { return quantize_kernels().back(); }

void expect_same(const QuantizedRows& a, const QuantizedRows& b, const std::string& where) {
  for (std::uint64_t m = 0; m < a.rows; ++m) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(a.scales[m]), std::bit_cast<std::uint32_t>(b.scales[m]))
        << where << " row " << m;
    EXPECT_EQ(a.sums[m], b.sums[m]) << where << " row " << m;
  }
  ASSERT_EQ(a.stride, b.stride);
  EXPECT_EQ(std::memcmp(a.codes.data(), b.codes.data(), a.rows * a.stride), 0) << where;
}

TEST(Quantize, reference_follows_the_formula) {
  std::mt19937 random(1);
  const TestActivation x = make_activation(random, DType::f32, 3, 64);
  for (Activation mode : modes) {
    const QuantizedRows q = quantize_with(reference(), x.view, 16, mode);
    const double largest = mode == Activation::int8 ? 127 : 7;
    for (std::uint64_t m = 0; m < 3; ++m) {
      std::vector<float> r(64);
      for (std::uint64_t k = 0; k < 64; ++k) r[k] = x.at(m, k);
      rotate_groups(r, 16);
      float absmax = 0;
      for (float v : r) absmax = std::max(absmax, std::fabs(v));
      EXPECT_FLOAT_EQ(q.scales[m], static_cast<float>(absmax / largest));
      std::int32_t sum = 0;
      for (std::uint64_t k = 0; k < 64; ++k) {
        const int code = code_at(q, m, k);
        EXPECT_LE(std::fabs(static_cast<float>(code) - r[k] / q.scales[m]), 0.5001);
        EXPECT_LE(std::abs(code), largest);
        sum += code;
      }
      EXPECT_EQ(q.sums[m], sum);
    }
  }
}

TEST(Quantize, halves_go_to_the_even_code) {
  std::mt19937 random(4);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    TestActivation x = make_activation(random, DType::f32, 1, 8);
    const float values[8] = {127, 0.5f, 1.5f, 2.5f, -0.5f, -1.5f, -2.5f, 126.5f};
    const int codes[8] = {127, 0, 2, 2, 0, -2, -2, 126};
    for (std::uint64_t k = 0; k < 8; ++k) x.set(0, k, values[k]);
    const QuantizedRows q = quantize_with(kernel, x.view, 0, Activation::int8);
    EXPECT_EQ(q.scales[0], 1.0f);
    for (std::uint64_t k = 0; k < 8; ++k) EXPECT_EQ(code_at(q, 0, k), codes[k]) << kernel.name;
  }
}

TEST(Quantize, rows_with_nan_or_infinity_have_a_nan_scale_and_zero_codes) {
  std::mt19937 random(2);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (DType dtype : dtypes) {
      for (float bad : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
        for (std::uint64_t group : {0u, 4u, 64u}) {
          TestActivation x = make_activation(random, dtype, 3, group == 0 ? 70 : 128);
          x.set(1, x.view.columns - 1, bad);
          const QuantizedRows q = quantize_with(kernel, x.view, group, Activation::int8);
          EXPECT_TRUE(std::isnan(q.scales[1])) << kernel.name;
          EXPECT_EQ(q.sums[1], 0) << kernel.name;
          for (std::uint64_t k = 0; k < q.stride; ++k) EXPECT_EQ(code_at(q, 1, k), 0);
          EXPECT_FALSE(std::isnan(q.scales[0])) << kernel.name;
          EXPECT_FALSE(std::isnan(q.scales[2])) << kernel.name;
        }
      }
    }
  }
}

// Finite values whose rotation overflows: no scale can hold them.
TEST(Quantize, a_rotation_that_overflows_gives_a_nan_scale) {
  std::mt19937 random(5);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    TestActivation x = make_activation(random, DType::f32, 1, 64);
    for (std::uint64_t k = 0; k < 64; ++k) x.set(0, k, 3e38f);
    EXPECT_TRUE(std::isnan(quantize_with(kernel, x.view, 64, Activation::int8).scales[0]));
    EXPECT_EQ(quantize_with(kernel, x.view, 0, Activation::int8).scales[0], 3e38f / 127.0f);
  }
}

TEST(Quantize, zero_rows_give_zero_codes) {
  std::mt19937 random(3);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    TestActivation x = make_activation(random, DType::f32, 1, 64);
    for (std::uint64_t k = 0; k < 64; ++k) x.set(0, k, 0);
    const QuantizedRows q = quantize_with(kernel, x.view, 64, Activation::int4);
    EXPECT_EQ(q.scales[0], 1e-30f);
    EXPECT_EQ(q.sums[0], 0);
  }
}

// Rows: ordinary, zero, near the largest of the type, tiny, one value that dwarfs the others.
TestActivation awkward_rows(std::mt19937& random, DType dtype, std::uint64_t columns) {
  TestActivation x = make_activation(random, dtype, 5, columns);
  for (std::uint64_t k = 0; k < columns; ++k) {
    x.set(1, k, 0);
    x.set(2, k, x.at(2, k) * (dtype == DType::f16 ? 60000.f : 1e38f));
    x.set(3, k, x.at(3, k) * (dtype == DType::f16 ? 1e-6f : 1e-41f));
  }
  x.set(4, columns / 2, 3000);
  return x;
}

TEST(Quantize, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  std::vector<std::uint64_t> widths = {256, 320, 1000, 1024, 3072, 5376, 8192};
  for (std::uint64_t columns = 1; columns <= 70; ++columns) widths.push_back(columns);
  for (const QuantizeKernel& kernel : variants(quantize_kernels())) {
    for (DType dtype : dtypes) {
      for (Activation mode : modes) {
        for (std::uint64_t group : {0u, 4u, 16u, 64u, 256u, 1024u, 4096u}) {
          for (std::uint64_t columns : widths) {
            if (group && columns % group) continue;
            const TestActivation x = awkward_rows(random, dtype, columns);
            const std::string where = std::string(kernel.name) + " " +
                                      std::string(dtype_name(dtype)) + " K " +
                                      std::to_string(columns) + " group " + std::to_string(group);
            expect_same(quantize_with(kernel, x.view, group, mode),
                        quantize_with(reference(), x.view, group, mode), where);
          }
        }
      }
    }
  }
}

// Kernels of the product rely on it: c is never below -q, even where the row's largest value is
// negative and its quotient was rounded.
TEST(Quantize, codes_stay_within_the_largest_magnitude) {
  std::mt19937 random(7);
  std::uniform_real_distribution<float> exponent(-40, 38);
  for (int round = 0; round < 2000; ++round) {
    TestActivation x = make_activation(random, DType::f32, 1, 16);
    const float scale = std::pow(10.0f, exponent(random));
    for (std::uint64_t k = 0; k < 16; ++k) x.set(0, k, x.at(0, k) * scale);
    for (const Activation mode : {Activation::int8, Activation::int4})
      for (const QuantizeKernel& kernel : quantize_kernels()) {
        if (!runs_here(kernel.isa)) continue;
        const QuantizedRows q = quantize_with(kernel, x.view, 0, mode);
        for (std::uint64_t k = 0; k < 16; ++k)
          ASSERT_GE(code_at(q, 0, k), mode == Activation::int8 ? -127 : -7) << kernel.name;
      }
  }
}

TEST(Quantize, any_range_of_rows_may_be_done_alone) {
  std::mt19937 random(6);
  const TestActivation x = make_activation(random, DType::bf16, 9, 192);
  for (const QuantizeKernel& kernel : quantize_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    const QuantizedRows whole = quantize_with(kernel, x.view, 64, Activation::int8);
    QuantizedRows parts;
    parts.resize(9, 192);
    std::fill_n(parts.codes.data(), parts.codes.size(), std::byte{0x55});
    AlignedBytes scratch(quantize_scratch(192) * sizeof(float));
    for (std::uint64_t first : {5u, 0u, 2u})
      kernel.run(x.view, first,
                 first == 5   ? 9
                 : first == 0 ? 2
                              : 5,
                 64, Activation::int8, parts, reinterpret_cast<float*>(scratch.data()));
    expect_same(parts, whole, std::string(kernel.name));
  }
}

}  // namespace
}  // namespace parfait::kernels
