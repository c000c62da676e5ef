// Dense products and convolutions through the public calls.

#include <gtest/gtest.h>

#include <cmath>

#include "parfait/ops.h"

namespace parfait {
namespace {

std::vector<float> ramp(std::uint64_t count, float step) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = std::sin(static_cast<float>(i) * step);
  return values;
}
Matrix view(std::vector<float>& values, std::uint64_t rows, std::uint64_t columns) {
  return {values.data(), DType::f32, rows, columns, columns};
}

TEST(OpsDense, any_number_of_threads_gives_the_same_bits) {
  constexpr std::uint64_t M = 300, N = 700, K = 48;
  auto x = ramp(M * K, 0.7f), w = ramp(N * K, 1.3f);
  const auto bias = ramp(N, 0.1f);
  std::vector<float> first;
  for (unsigned threads : {1u, 2u, 3u, 7u}) {
    auto ops = Ops::make(threads);
    ASSERT_TRUE(ops.ok());
    auto packed = ops->pack_dense(view(w, N, K), bias);
    ASSERT_TRUE(packed.ok()) << packed.error().message;
    std::vector<float> y(M * N, -1);
    auto done = ops->dense(view(x, M, K), *packed, view(y, M, N));
    ASSERT_TRUE(done.ok()) << done.error().message;
    if (first.empty()) first = y;
    EXPECT_EQ(y, first) << threads << " threads";
  }
}

TEST(OpsDense, convolution_on_any_number_of_threads) {
  constexpr std::uint64_t height = 70, width = 150, C = 6, O = 10;
  auto x = ramp(height * width * C, 0.7f), w = ramp(O * C * 9, 1.3f);
  std::vector<float> first, expected;
  for (const auto isa : {std::optional<Isa>(Isa::reference), std::optional<Isa>()}) {
    for (unsigned threads : {1u, 2u, 3u, 7u}) {
      auto ops = Ops::make(threads, isa);
      ASSERT_TRUE(ops.ok());
      ConvOptions options;
      options.stride = 2;
      options.pad_top = options.pad_left = 0;  // as an encoder pads
      auto packed = ops->pack_conv(view(w, O, C * 9), C, options);
      ASSERT_TRUE(packed.ok()) << packed.error().message;
      std::vector<float> y(35 * 75 * O, -1);
      auto done =
          ops->conv2d(view(x, height * width, C), {height, width}, *packed, view(y, 35 * 75, O));
      ASSERT_TRUE(done.ok()) << done.error().message;
      auto& same = isa ? expected : first;
      if (same.empty()) same = y;
      EXPECT_EQ(y, same) << threads << " threads";
    }
  }
  for (std::size_t i = 0; i < first.size(); ++i) ASSERT_NEAR(first[i], expected[i], 1e-4) << i;
}

TEST(OpsDense, refuses_what_does_not_fit) {
  auto ops = Ops::make(1);
  ASSERT_TRUE(ops.ok());
  std::vector<float> a(4096), y(4096);
  const std::vector<float> bias(3);
  EXPECT_EQ(ops->pack_dense(view(a, 4, 8), bias).error().code, ErrorCode::run_shape);
  EXPECT_EQ(ops->pack_dense({a.data(), DType::i8, 4, 8, 8}).error().code, ErrorCode::run_dtype);
  EXPECT_EQ(ops->pack_dense({a.data(), DType::f32, 4, 8, 7}).error().code, ErrorCode::run_shape);
  EXPECT_EQ(ops->pack_dense({nullptr, DType::f32, 4, 8, 8}).error().code, ErrorCode::run_shape);
  const auto w = ops->pack_dense(view(a, 4, 8));
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(ops->dense(view(a, 3, 9), *w, view(y, 3, 4)).error().code, ErrorCode::run_shape);
  EXPECT_EQ(ops->dense(view(a, 3, 8), *w, view(y, 3, 5)).error().code, ErrorCode::run_shape);
  EXPECT_EQ(ops->dense(view(a, 3, 8), *w, view(y, 2, 4)).error().code, ErrorCode::run_shape);
  EXPECT_TRUE(ops->dense(view(a, 0, 8), *w, view(y, 0, 4)).ok());

  ConvOptions options;
  EXPECT_EQ(ops->pack_conv(view(a, 4, 10), 1, options).error().code, ErrorCode::run_shape);
  options.pad_top = 3;
  EXPECT_EQ(ops->pack_conv(view(a, 4, 9), 1, options).error().code, ErrorCode::run_shape);
  options.pad_top = 1;
  options.stride = 0;
  EXPECT_EQ(ops->pack_conv(view(a, 4, 9), 1, options).error().code, ErrorCode::run_shape);
  options.stride = 1;
  options.kernel_height = 1u << 20;
  EXPECT_EQ(ops->pack_conv(view(a, 4, 9), 1, options).error().code, ErrorCode::run_shape);
  const auto conv = ops->pack_conv(view(a, 4, 9), 1, {});
  ASSERT_TRUE(conv.ok());
  EXPECT_EQ(ops->conv2d(view(a, 12, 1), {3, 5}, *conv, view(y, 15, 4)).error().code,
            ErrorCode::run_shape);
  EXPECT_EQ(ops->conv2d(view(a, 15, 1), {3, 5}, *conv, view(y, 14, 4)).error().code,
            ErrorCode::run_shape);
  EXPECT_EQ(ops->conv2d(view(a, 0, 1), {0, 5}, *conv, view(y, 0, 4)).error().code,
            ErrorCode::run_shape);
  EXPECT_EQ(ops->conv2d(view(a, 1, 1), {1ull << 40, 1ull << 40}, *conv, view(y, 1, 4)).error().code,
            ErrorCode::run_shape);
}

}  // namespace
}  // namespace parfait
