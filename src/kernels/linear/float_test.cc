// The float product: every variant against the reference bit for bit, and both against a sum in
// double.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

struct Product {
  std::uint64_t rows, outputs, columns;
  std::vector<float> x, w, bias;  // rows of x start 2 floats apart
};

Product make_product(std::mt19937& random, std::uint64_t rows, std::uint64_t outputs,
                     std::uint64_t columns) {
  Product p{rows, outputs, columns, {}, {}, {}};
  p.x.resize(rows * (columns + 2));
  p.w.resize(outputs * columns);
  p.bias.resize(outputs);
  std::normal_distribution<float> normal(0, 1);
  for (auto* values : {&p.x, &p.w, &p.bias})
    for (float& v : *values) v = normal(random);
  return p;
}

// The weight's rows are handed over as rows first .. of a larger one.
constexpr std::uint64_t first = 3;

std::vector<std::byte> multiply(const FloatKernel& kernel, const Product& p, DType dtype,
                                const float* bias, std::uint64_t m_step) {
  const std::uint64_t stride = first + p.outputs + 1;
  std::vector<std::byte> bytes(p.rows * stride * (dtype_bits(dtype) / 8) + 1, std::byte{0x5a});
  const Matrix y{bytes.data() + 1, dtype, p.rows, first + p.outputs, stride};
  for (std::uint64_t m = 0; m < p.rows; m += m_step)
    kernel.multiply(p.x.data(), p.columns + 2, m, std::min(m + m_step, p.rows), p.w.data(), first,
                    first + p.outputs, p.columns, bias, y);
  return bytes;
}

TEST(FloatKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const FloatKernel& reference = float_kernels().back();
  std::vector<std::uint64_t> widths = {48, 64, 100, 384, 1000};
  for (std::uint64_t columns = 1; columns <= 33; ++columns) widths.push_back(columns);
  for (const FloatKernel& kernel : variants(float_kernels())) {
    for (std::uint64_t columns : widths) {
      for (std::uint64_t rows : {1u, 2u, 3u, 5u, 6u, 7u, 9u, 13u, 20u}) {
        for (std::uint64_t outputs : {1u, 3u, 4u, 5u, 9u}) {
          Product p = make_product(random, rows, outputs, columns);
          if (rows > 2) p.x[columns + 2] = std::numeric_limits<float>::infinity();
          if (outputs > 3) std::fill_n(p.w.begin(), columns, -0.0f);
          std::vector<float> bias(first, 0);
          bias.insert(bias.end(), p.bias.begin(), p.bias.end());
          const DType dtype = dtypes[(rows + outputs + columns) % 3];
          const float* with = rows % 2 ? bias.data() : nullptr;
          const auto expected = multiply(reference, p, dtype, with, rows);
          for (std::uint64_t step : {rows, std::uint64_t{4}})
            EXPECT_EQ(multiply(kernel, p, dtype, with, step), expected)
                << kernel.name << " M " << rows << " N " << outputs << " K " << columns;
        }
      }
    }
  }
}

TEST(FloatKernels, reference_is_near_the_sum_in_double) {
  std::mt19937 random(21);
  const FloatKernel& kernel = float_kernels().back();
  for (std::uint64_t columns : {1u, 15u, 16u, 17u, 384u}) {
    const Product p = make_product(random, 4, 5, columns);
    const auto bytes = multiply(kernel, p, DType::f32, nullptr, 4);
    for (std::uint64_t m = 0; m < 4; ++m) {
      for (std::uint64_t n = 0; n < 5; ++n) {
        double sum = 0;
        for (std::uint64_t k = 0; k < columns; ++k)
          sum += double{p.x[m * (columns + 2) + k]} * p.w[n * columns + k];
        EXPECT_NEAR(load_float(DType::f32, bytes.data() + 1, m * (first + 6) + first + n), sum,
                    1e-6 * std::sqrt(static_cast<double>(columns)) * 10);
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
