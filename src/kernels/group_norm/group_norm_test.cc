// GroupNorm's steps: every variant against the reference bit for bit, and the statistics and the
// result of the reference against double.

#include "kernels/group_norm/group_norm.h"

#include <gtest/gtest.h>

#include "base/checked.h"
#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

struct Channels {
  std::vector<float> mean, factor, bias;
  Channels(std::mt19937& random, std::uint64_t columns)
      : mean(make_vector(random, columns)),
        factor(make_vector(random, columns)),
        bias(make_vector(random, columns)) {}
  ChannelParameters parameters() const { return {mean.data(), factor.data(), bias.data()}; }
};

bool same_values(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, same);
}

TEST(GroupNormKernels, every_variant_equals_the_reference) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  const GroupNormKernel& reference = group_norm_kernels().back();
  for (std::uint64_t columns : awkward_lengths()) {
    for (int combination = 0; combination < 9; ++combination) {
      const DType in = dtypes[combination % 3], out = dtypes[combination / 3];
      const std::uint64_t rows = 1 + random() % 12, first = random() % rows;
      TestActivation x = make_activation(random, in, rows, columns);
      if (combination % 2) make_awkward(random, x, 32);
      const Channels channels(random, columns);
      // One more value, which must stay.
      std::vector<float> want_sums(columns + 1, 7.0f), want_squares(columns + 1, 7.0f);
      reference.sums(x.view, first, rows, want_sums.data());
      reference.squares(x.view, first, rows, channels.mean.data(), want_squares.data());
      for (const GroupNormKernel& kernel : variants(group_norm_kernels())) {
        std::vector<float> sums(columns + 1, 7.0f), squares(columns + 1, 7.0f);
        kernel.sums(x.view, first, rows, sums.data());
        kernel.squares(x.view, first, rows, channels.mean.data(), squares.data());
        EXPECT_TRUE(same_values(sums, want_sums)) << kernel.name << " C " << columns;
        EXPECT_TRUE(same_values(squares, want_squares)) << kernel.name << " C " << columns;
        for (AfterNorm after : {AfterNorm::nothing, AfterNorm::silu}) {
          TestOutput want(out, rows, columns), got(out, rows, columns);
          reference.normalise(x.view, channels.parameters(), after, 0, rows, want.view);
          kernel.normalise(x.view, channels.parameters(), after, 0, first, got.view);
          kernel.normalise(x.view, channels.parameters(), after, first, rows, got.view);
          expect_same(got, want, fmt::format("{} C {}", kernel.name, columns));
        }
      }
    }
  }
}

TEST(GroupNormKernels, moments_are_those_of_the_values) {
  std::mt19937 random(12);
  struct Shape {
    std::uint64_t pixels, columns, groups;
  };
  for (const Shape& s : {Shape{1, 4, 2}, Shape{100, 12, 3}, Shape{128, 32, 32}, Shape{129, 40, 1},
                         Shape{1000, 64, 4}}) {
    for (float offset : {0.0f, 50.0f}) {
      TestActivation x = make_activation(random, DType::f32, s.pixels, s.columns);
      for (std::uint64_t m = 0; m < s.pixels; ++m)
        for (std::uint64_t c = 0; c < s.columns; ++c)
          x.set(m, c, x.at(m, c) + offset + static_cast<float>(m) * 0.01f);
      const std::uint64_t blocks = ceil_div(s.pixels, block_pixels),
                          channels = s.columns / s.groups;
      for (const GroupNormKernel& kernel : group_norm_kernels()) {
        if (!runs_here(kernel.isa)) continue;
        std::vector<Moments> moments(blocks * s.groups);
        std::vector<float> scratch(2 * s.columns);
        for (std::uint64_t block = 0; block < blocks; ++block)
          block_moments(kernel, x.view, s.groups, block, scratch.data(),
                        moments.data() + block * s.groups);
        for (std::uint64_t g = 0; g < s.groups; ++g) {
          double mean = 0, squares = 0;
          const double count = static_cast<double>(s.pixels * channels);
          for (std::uint64_t m = 0; m < s.pixels; ++m)
            for (std::uint64_t c = 0; c < channels; ++c) mean += x.at(m, g * channels + c) / count;
          for (std::uint64_t m = 0; m < s.pixels; ++m)
            for (std::uint64_t c = 0; c < channels; ++c)
              squares += std::pow(x.at(m, g * channels + c) - mean, 2);
          const Moments got = join_moments(x.view, s.groups, g, moments.data());
          EXPECT_NEAR(got.mean, mean, 1e-6 * (1 + offset)) << kernel.name;
          EXPECT_NEAR(got.squares, squares, 1e-5 * squares) << kernel.name << " P " << s.pixels;
        }
      }
    }
  }
}

TEST(GroupNormKernels, normalise_is_what_the_formula_says) {
  std::mt19937 random(13);
  constexpr std::uint64_t rows = 3, columns = 21;
  const TestActivation x = make_activation(random, DType::f32, rows, columns);
  const Channels channels(random, columns);
  for (AfterNorm after : {AfterNorm::nothing, AfterNorm::silu}) {
    TestOutput y(DType::f32, rows, columns);
    group_norm_kernels().back().normalise(x.view, channels.parameters(), after, 0, rows, y.view);
    for (std::uint64_t m = 0; m < rows; ++m) {
      for (std::uint64_t c = 0; c < columns; ++c) {
        double want =
            (double{x.at(m, c)} - channels.mean[c]) * channels.factor[c] + channels.bias[c];
        if (after == AfterNorm::silu) want /= 1 + std::exp(-want);
        EXPECT_NEAR(y.at(m, c), want, 2e-6);
      }
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
