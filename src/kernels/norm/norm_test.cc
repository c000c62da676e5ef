// Norms: every variant against the reference bit for bit, and the reference against double.

#include "kernels/norm/norm.h"

#include <gtest/gtest.h>

#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

constexpr Norm kinds[] = {Norm::rms, Norm::layer};

// Some of the four vectors, by the bits of which.
struct Vectors {
  std::vector<float> weight, bias, scale, shift;
  NormParameters parameters;

  Vectors(std::mt19937& random, std::uint64_t columns, unsigned which)
      : weight(make_vector(random, columns)),
        bias(make_vector(random, columns)),
        scale(make_vector(random, columns)),
        shift(make_vector(random, columns)) {
    if (which & 1) parameters.weight = weight.data();
    if (which & 2) parameters.bias = bias.data();
    if (which & 4) parameters.scale = scale.data();
    if (which & 8) parameters.shift = shift.data();
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;
};

TEST(NormKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const NormKernel& reference = norm_kernels().back();
  auto lengths = awkward_lengths();
  lengths.push_back(1536);
  lengths.push_back(5121);
  for (std::uint64_t columns : lengths) {
    for (unsigned which = 0; which < 16; ++which) {
      const Vectors vectors(random, columns, which);
      const DType in = dtypes[random() % 3], out = dtypes[random() % 3];
      const std::uint64_t rows = 1 + random() % 10;
      TestActivation x = make_activation(random, in, rows, columns);
      if (which % 3 == 0) make_awkward(random, x, 64);
      for (Norm kind : kinds) {
        TestOutput want(out, rows, columns);
        reference.run(kind, vectors.parameters, x.view, 0, rows, want.view);
        for (const NormKernel& kernel : variants(norm_kernels())) {
          for (std::uint64_t step : {rows, std::uint64_t{3}}) {
            TestOutput got(out, rows, columns);
            for (std::uint64_t m = 0; m < rows; m += step)
              kernel.run(kind, vectors.parameters, x.view, m, std::min(m + step, rows), got.view);
            expect_same(got, want,
                        fmt::format("{} kind {} D {} vectors {} step {}", kernel.name,
                                    static_cast<int>(kind), columns, which, step));
          }
        }
      }
    }
  }
}

TEST(NormKernels, awkward_rows_equal_the_reference) {
  std::mt19937 random(3);
  const NormKernel& reference = norm_kernels().back();
  constexpr std::uint64_t columns = 83, rows = std::size(awkward_values);
  TestActivation x = make_activation(random, DType::f32, rows, columns);
  for (std::uint64_t m = 0; m < rows; ++m)  // one each, then a row of nothing else
    for (std::uint64_t c = m % 2 ? 17 : 0; c < (m % 2 ? 18 : columns); ++c)
      x.set(m, c, awkward_values[m]);
  for (float epsilon : {1e-6f, 0.0f}) {
    for (Norm kind : kinds) {
      NormParameters parameters;
      parameters.epsilon = epsilon;
      TestOutput want(DType::f32, rows, columns);
      reference.run(kind, parameters, x.view, 0, rows, want.view);
      EXPECT_TRUE(std::isnan(want.at(4, 50)));  // the row of NaN
      for (const NormKernel& kernel : variants(norm_kernels())) {
        TestOutput got(DType::f32, rows, columns);
        kernel.run(kind, parameters, x.view, 0, rows, got.view);
        expect_same(got, want, std::string(kernel.name));
      }
    }
  }
}

double right(Norm kind, const Vectors& v, const TestActivation& x, std::uint64_t m,
             std::uint64_t c) {
  const std::uint64_t D = x.view.columns;
  double mean = 0, squares = 0;
  if (kind == Norm::layer)
    for (std::uint64_t k = 0; k < D; ++k) mean += double{x.at(m, k)} / static_cast<double>(D);
  for (std::uint64_t k = 0; k < D; ++k) squares += std::pow(x.at(m, k) - mean, 2);
  const double n = (x.at(m, c) - mean) /
                   std::sqrt(squares / static_cast<double>(D) + double{v.parameters.epsilon});
  const NormParameters& p = v.parameters;
  return (n * (p.weight ? p.weight[c] : 1) + (p.bias ? p.bias[c] : 0)) *
             (1 + double{p.scale ? p.scale[c] : 0}) +
         (p.shift ? p.shift[c] : 0);
}

TEST(NormKernels, reference_is_near_the_formula_in_double) {
  std::mt19937 random(4);
  const NormKernel& kernel = norm_kernels().back();
  double worst = 0;
  for (std::uint64_t columns : {2u, 15u, 17u, 100u, 3000u}) {
    for (unsigned which = 0; which < 16; ++which) {
      const Vectors vectors(random, columns, which);
      TestActivation x = make_activation(random, DType::f32, 2, columns);
      // The second row has a mean that is large beside its deviations.
      for (std::uint64_t c = 0; c < columns; ++c) x.set(1, c, x.at(1, c) + 100);
      for (Norm kind : kinds) {
        TestOutput y(DType::f32, 2, columns);
        kernel.run(kind, vectors.parameters, x.view, 0, 2, y.view);
        for (std::uint64_t m = 0; m < 2; ++m) {
          for (std::uint64_t c = 0; c < columns; c += 1 + columns / 50) {
            const double want = right(kind, vectors, x, m, c);
            // The mean of values near 100 is known to 1e-5; the deviations of two may be small.
            const double tolerance = m == 0 ? 4e-6 : columns == 2 ? 2e-3 : 1e-4;
            const double error = std::fabs(y.at(m, c) - want);
            ASSERT_LE(error, tolerance * std::max(1.0, std::fabs(want)))
                << "D " << columns << " vectors " << which << " row " << m;
            worst = std::max(worst, error);
          }
        }
      }
    }
  }
  EXPECT_GT(worst, 0);
}

TEST(NormKernels, known_values) {
  const float x[] = {1, 2, 3, 4};  // mean 2.5, variance 1.25, mean square 7.5
  float y[4];
  NormParameters parameters;
  parameters.epsilon = 0;
  for (const NormKernel& kernel : norm_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    kernel.run(Norm::layer, parameters, {x, DType::f32, 1, 4, 4}, 0, 1, {y, DType::f32, 1, 4, 4});
    EXPECT_FLOAT_EQ(y[0], -1.5f / std::sqrt(1.25f));
    EXPECT_FLOAT_EQ(y[3], 1.5f / std::sqrt(1.25f));
    kernel.run(Norm::rms, parameters, {x, DType::f32, 1, 4, 4}, 0, 1, {y, DType::f32, 1, 4, 4});
    EXPECT_FLOAT_EQ(y[0], 1 / std::sqrt(7.5f));
    EXPECT_FLOAT_EQ(y[3], 4 / std::sqrt(7.5f));
  }
}

TEST(NormKernels, in_place) {
  std::mt19937 random(5);
  constexpr std::uint64_t rows = 6, columns = 70;
  const Vectors vectors(random, columns, 15);
  for (const NormKernel& kernel : norm_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (DType dtype : dtypes) {
      for (Norm kind : kinds) {
        TestActivation x = make_activation(random, dtype, rows, columns);
        TestOutput want(dtype, rows, columns);
        kernel.run(kind, vectors.parameters, x.view, 0, rows, want.view);
        const Matrix y{x.bytes.data() + 1, dtype, rows, columns, x.view.stride};
        kernel.run(kind, vectors.parameters, x.view, 0, rows, y);
        for (std::uint64_t m = 0; m < rows; ++m)
          for (std::uint64_t c = 0; c < columns; ++c)
            ASSERT_TRUE(same(x.at(m, c), want.at(m, c))) << kernel.name;
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
