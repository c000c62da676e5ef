// Dense products and convolutions through the public calls.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <thread>

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

// A matrix of any type, whose rows start `gap` elements apart.
struct Data {
  std::vector<std::byte> bytes;
  Matrix view;
  Data(DType dtype, std::uint64_t rows, std::uint64_t columns, std::uint64_t gap, float step)
      : bytes(rows * (columns + gap) * (dtype_bits(dtype) / 8)),
        view{bytes.data(), dtype, rows, columns, columns + gap} {
    for (std::uint64_t i = 0; i < rows * (columns + gap); ++i)
      store_float(dtype, bytes.data(), i, std::sin(static_cast<float>(i) * step));
  }
  double at(std::uint64_t m, std::uint64_t n) const {
    return load_float(view.dtype, bytes.data(), m * view.stride + n);
  }
};
constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(OpsDense, every_type_on_any_number_of_threads_and_by_plain_loops) {
  constexpr std::uint64_t M = 260, N = 1030, K = 40;
  for (const DType x_type : dtypes) {
    for (const DType w_type : dtypes) {
      for (const std::uint64_t gap : {0u, 3u}) {
        const Data x(x_type, M, K, gap, 0.7f), w(w_type, N, K, gap, 1.3f);
        std::vector<std::byte> first;
        for (unsigned threads : {1u, 2u, 3u, 7u}) {
          auto ops = Ops::make(threads);
          ASSERT_TRUE(ops.ok());
          auto packed = ops->pack_dense(w.view);
          ASSERT_TRUE(packed.ok()) << packed.error().message;
          Data y(DType::bf16, M, N, gap, 0);
          for (int again = 0; again < 2; ++again)
            ASSERT_TRUE(ops->dense(x.view, *packed, y.view).ok());
          if (first.empty()) first = y.bytes;
          EXPECT_EQ(y.bytes, first) << threads << " threads";
        }
        auto ops = Ops::make(2, Isa::reference);
        ASSERT_TRUE(ops.ok());
        auto packed = ops->pack_dense(w.view);
        ASSERT_TRUE(packed.ok());
        Data plain(DType::f32, M, N, gap, 0), y(DType::bf16, M, N, gap, 0);
        ASSERT_TRUE(ops->dense(x.view, *packed, plain.view).ok());
        y.bytes = first;
        y.view.data = y.bytes.data();
        for (std::uint64_t m = 0; m < M; m += 37)
          for (std::uint64_t n = 0; n < N; ++n)
            ASSERT_NEAR(y.at(m, n), plain.at(m, n), std::abs(plain.at(m, n)) * 0x1p-8 + 1e-5);
      }
    }
  }
}

// Several Ops on threads of the caller's, at once, with one weight: primitives of one shape are
// made and run everywhere at the same time.
TEST(OpsDense, callers_may_share_weights) {
  constexpr std::uint64_t M = 33, N = 600, K = 64;
  const Data x(DType::bf16, M, K, 0, 0.7f), w(DType::bf16, N, K, 0, 1.3f);
  const Data image(DType::bf16, 20 * 30, 16, 0, 0.3f), kernel(DType::bf16, 24, 16 * 9, 0, 0.9f);
  auto one = Ops::make(1);
  ASSERT_TRUE(one.ok());
  const auto dense = one->pack_dense(w.view);
  const auto conv = one->pack_conv(kernel.view, 16, {});
  ASSERT_TRUE(dense.ok() && conv.ok());
  Data y(DType::bf16, M, N, 0, 0), z(DType::bf16, 20 * 30, 24, 0, 0);
  ASSERT_TRUE(one->dense(x.view, *dense, y.view).ok());
  ASSERT_TRUE(one->conv2d(image.view, {20, 30}, *conv, z.view).ok());
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&] {
      auto ops = Ops::make(2);
      Data mine(DType::bf16, M, N, 0, 0), pixels(DType::bf16, 20 * 30, 24, 0, 0);
      for (int again = 0; again < 20; ++again) {
        std::fill(mine.bytes.begin(), mine.bytes.end(), std::byte{1});
        std::fill(pixels.bytes.begin(), pixels.bytes.end(), std::byte{1});
        EXPECT_TRUE(ops->dense(x.view, *dense, mine.view).ok());
        EXPECT_TRUE(ops->conv2d(image.view, {20, 30}, *conv, pixels.view).ok());
        EXPECT_EQ(mine.bytes, y.bytes);
        EXPECT_EQ(pixels.bytes, z.bytes);
      }
    });
  for (std::thread& caller : callers) caller.join();
}

#if defined(__linux__)
std::ptrdiff_t threads_of_this_program() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

// The library behind the kernels has threads of its own, which would fight with these.
TEST(OpsDense, no_threads_but_those_asked_for) {
  const Data x(DType::bf16, 600, 512, 0, 0.7f), w(DType::bf16, 1200, 512, 0, 1.3f);
  const Data kernel(DType::bf16, 64, 512 * 9, 0, 0.9f);
  auto ops = Ops::make(2);
  ASSERT_TRUE(ops.ok());
  const std::ptrdiff_t before = threads_of_this_program();
  const auto dense = ops->pack_dense(w.view);
  const auto conv = ops->pack_conv(kernel.view, 512, {});
  ASSERT_TRUE(dense.ok() && conv.ok());
  Data y(DType::bf16, 600, 1200, 0, 0), z(DType::bf16, 600, 64, 0, 0);
  ASSERT_TRUE(ops->dense(x.view, *dense, y.view).ok());
  ASSERT_TRUE(ops->conv2d(x.view, {20, 30}, *conv, z.view).ok());
  EXPECT_EQ(threads_of_this_program(), before);
}
#endif

TEST(OpsDense, empty_matrices) {
  auto ops = Ops::make(2);
  ASSERT_TRUE(ops.ok());
  const float bias[] = {1.5f, -2};
  std::vector<float> y(6, 9);
  const auto no_columns = ops->pack_dense({nullptr, DType::f32, 2, 0, 0}, bias);
  ASSERT_TRUE(no_columns.ok());
  ASSERT_TRUE(ops->dense({nullptr, DType::f32, 3, 0, 0}, *no_columns, view(y, 3, 2)).ok());
  EXPECT_EQ(y, (std::vector<float>{1.5f, -2, 1.5f, -2, 1.5f, -2}));
  const auto no_rows = ops->pack_dense({nullptr, DType::bf16, 0, 8, 8});
  ASSERT_TRUE(no_rows.ok());
  EXPECT_TRUE(ops->dense({y.data(), DType::f32, 0, 8, 8}, *no_rows, view(y, 0, 0)).ok());
  std::fill(y.begin(), y.end(), 9.0f);
  const auto no_channels = ops->pack_conv({nullptr, DType::f32, 2, 0, 0}, 0, {}, bias);
  ASSERT_TRUE(no_channels.ok());
  ASSERT_TRUE(
      ops->conv2d({nullptr, DType::f32, 3, 0, 0}, {1, 3}, *no_channels, view(y, 3, 2)).ok());
  EXPECT_EQ(y, (std::vector<float>{1.5f, -2, 1.5f, -2, 1.5f, -2}));
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
