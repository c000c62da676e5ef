// Rotary embedding: every variant against the reference bit for bit, and the reference against a
// rotation in double.

#include "kernels/rope/rope.h"

#include <gtest/gtest.h>

#include <complex>

#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

struct Problem {
  RopeOptions options;
  TestActivation x, cos, sin;
  std::vector<double> angles;  // M × S/2

  Problem(std::mt19937& random, RopeOptions with, std::uint64_t rows, std::uint64_t heads, DType in,
          DType angle)
      : options(with),
        x(make_activation(random, in, rows, heads * with.head_size)),
        cos(make_activation(random, angle, rows, with.head_size / 2, 2)),
        sin(make_activation(random, angle, rows, with.head_size / 2, 9)) {
    std::uniform_real_distribution<double> turn(-4, 4);
    for (std::uint64_t m = 0; m < rows; ++m) {
      for (std::uint64_t i = 0; i < with.head_size / 2; ++i) {
        angles.push_back(turn(random));
        cos.set(m, i, static_cast<float>(std::cos(angles.back())));
        sin.set(m, i, static_cast<float>(std::sin(angles.back())));
      }
    }
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  void run(const RopeKernel& kernel, std::uint64_t step, const Matrix& y) const {
    for (std::uint64_t m = 0; m < y.rows; m += step)
      kernel.run(options, x.view, cos.view, sin.view, m, std::min(m + step, y.rows), y);
  }
};

constexpr RopePairs both[] = {RopePairs::adjacent, RopePairs::halves};

TEST(RopeKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const RopeKernel& reference = rope_kernels().back();
  std::vector<std::uint64_t> sizes = {64, 66, 96, 128, 160, 256, 512, 530, 1040};
  for (std::uint64_t size = 2; size <= 50; size += 2) sizes.push_back(size);
  for (std::uint64_t size : sizes) {
    for (int combination = 0; combination < 27; ++combination) {
      const DType in = dtypes[combination % 3], angle = dtypes[combination / 3 % 3],
                  out = dtypes[combination / 9];
      for (RopePairs pairs : both) {
        const std::uint64_t rows = 1 + random() % 4, heads = 1 + random() % 4;
        Problem problem(random, {size, pairs}, rows, heads, in, angle);
        if (combination % 2) make_awkward(random, problem.x, 8);
        if (combination % 5 == 1) make_awkward(random, problem.sin, 8);
        TestOutput want(out, rows, heads * size);
        problem.run(reference, rows, want.view);
        for (const RopeKernel& kernel : variants(rope_kernels())) {
          TestOutput got(out, rows, heads * size);
          problem.run(kernel, 2, got.view);
          expect_same(got, want,
                      fmt::format("{} S {} pairs {} heads {}", kernel.name, size,
                                  static_cast<int>(pairs), heads));
        }
      }
    }
  }
}

TEST(RopeKernels, reference_is_a_rotation) {
  std::mt19937 random(8);
  const RopeKernel& kernel = rope_kernels().back();
  constexpr std::uint64_t rows = 3, heads = 2, size = 12;
  for (RopePairs pairs : both) {
    const Problem problem(random, {size, pairs}, rows, heads, DType::f32, DType::f32);
    TestOutput y(DType::f32, rows, heads * size);
    problem.run(kernel, rows, y.view);
    for (std::uint64_t m = 0; m < rows; ++m) {
      for (std::uint64_t head = 0; head < heads; ++head) {
        for (std::uint64_t i = 0; i < size / 2; ++i) {
          const std::uint64_t a = head * size + (pairs == RopePairs::adjacent ? 2 * i : i);
          const std::uint64_t b = pairs == RopePairs::adjacent ? a + 1 : a + size / 2;
          const std::complex<double> turned =
              std::complex<double>(problem.x.at(m, a), problem.x.at(m, b)) *
              std::polar(1.0, problem.angles[m * size / 2 + i]);
          EXPECT_NEAR(y.at(m, a), turned.real(), 1e-6);
          EXPECT_NEAR(y.at(m, b), turned.imag(), 1e-6);
        }
      }
    }
  }
}

TEST(RopeKernels, in_place) {
  std::mt19937 random(9);
  for (const RopeKernel& kernel : rope_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    for (DType dtype : dtypes) {
      for (RopePairs pairs : both) {
        for (std::uint64_t size : {10u, 64u, 80u}) {
          Problem problem(random, {size, pairs}, 3, 3, dtype, DType::f32);
          TestOutput want(dtype, 3, 3 * size);
          problem.run(kernel, 3, want.view);
          problem.run(kernel, 3,
                      {problem.x.bytes.data() + 1, dtype, 3, 3 * size, problem.x.view.stride});
          for (std::uint64_t m = 0; m < 3; ++m)
            for (std::uint64_t c = 0; c < 3 * size; ++c)
              ASSERT_TRUE(same(problem.x.at(m, c), want.at(m, c))) << kernel.name << " S " << size;
        }
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
