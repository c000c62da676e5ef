// Upsampling: every variant gives each pixel's own values, rounded as base/floats.h defines it.

#include "kernels/upsample/upsample.h"

#include <gtest/gtest.h>

#include "kernels/simd/rows_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

TEST(UpsampleKernels, every_pixel_becomes_a_square) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  for (std::uint64_t columns : awkward_lengths()) {
    for (int combination = 0; combination < 9; ++combination) {
      const DType in = dtypes[combination % 3], out = dtypes[combination / 3];
      const std::uint64_t height = 1 + random() % 4, width = 1 + random() % 4,
                          factor = 1 + random() % 3;
      TestActivation x = make_activation(random, in, height * width, columns);
      make_awkward(random, x, 8);
      for (const UpsampleKernel& kernel : upsample_kernels()) {
        if (!runs_here(kernel.isa)) continue;
        TestOutput y(out, height * width * factor * factor, columns);
        for (std::uint64_t r = 0; r < height; ++r)
          kernel.run(x.view, width, factor, r, r + 1, y.view);
        y.expect_gaps_untouched(kernel.name);
        for (std::uint64_t r = 0; r < height * factor; ++r) {
          for (std::uint64_t p = 0; p < width * factor; ++p) {
            for (std::uint64_t c = 0; c < columns; ++c) {
              std::byte rounded[4];
              store_float(out, rounded, 0, x.at(r / factor * width + p / factor, c));
              ASSERT_TRUE(same(y.at(r * width * factor + p, c), load_float(out, rounded, 0)))
                  << kernel.name << " pixel " << r << ", " << p << " channel " << c;
            }
          }
        }
      }
    }
  }
}

TEST(UpsampleKernels, bytes_of_the_same_type_are_copied) {
  const std::uint16_t x[] = {0x7f81, 0xff81, 0x0001};  // signalling NaNs stay as they are
  for (const UpsampleKernel& kernel : upsample_kernels()) {
    if (!runs_here(kernel.isa)) continue;
    std::uint16_t y[12] = {};
    kernel.run({x, DType::bf16, 1, 3, 3}, 1, 2, 0, 1, {y, DType::bf16, 4, 3, 3});
    for (int i = 0; i < 12; ++i) EXPECT_EQ(y[i], x[i % 3]) << kernel.name;
  }
}

}  // namespace
}  // namespace parfait::kernels
