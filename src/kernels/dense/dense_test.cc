// Dense products and convolutions: the reference against sums in double, every variant against the
// reference.

#include "kernels/dense/dense.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/floats.h"
#include "kernels/linear/linear_testing.h"

namespace parfait::kernels {
namespace {

using namespace parfait::kernels::testing;

// What a sum of `terms` products of normal values may differ by after another order of summation,
// and one rounding to a type, relative to sqrt(terms), which is the size of such a sum.
double tolerance(std::uint64_t terms, DType y) {
  const double type = y == DType::bf16 ? 0x1p-8 : y == DType::f16 ? 0x1p-11 : 0;
  return (static_cast<double>(terms + 2) * 0x1p-24 + 2 * type) * 2 *
         (std::sqrt(static_cast<double>(terms)) + 1);
}

struct Output {
  std::vector<std::byte> bytes;
  Matrix view;
  Output(DType dtype, std::uint64_t rows, std::uint64_t columns, std::uint64_t gap)
      : bytes(rows * (columns + gap) * (dtype_bits(dtype) / 8) + 1, std::byte{0x5a}),
        view{bytes.data() + 1, dtype, rows, columns, columns + gap} {}
  double at(std::uint64_t m, std::uint64_t n) const {
    return static_cast<double>(load_float(view.dtype, bytes.data() + 1, m * view.stride + n));
  }
  void expect_gaps_untouched() const {
    const std::uint64_t size = dtype_bits(view.dtype) / 8;
    for (std::uint64_t m = 0; m < view.rows; ++m)
      for (std::uint64_t b = (m * view.stride + view.columns) * size;
           b < (m + 1) * view.stride * size; ++b)
        ASSERT_EQ(bytes[1 + b], std::byte{0x5a}) << "wrote between rows";
  }
};

std::vector<float> make_bias(std::mt19937& random, std::uint64_t count) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> bias(count);
  for (float& b : bias) b = normal(random);
  return bias;
}

Output multiply_with(const DenseKernel& kernel, const TestActivation& x, const TestActivation& w,
                     const std::vector<float>& bias, DType dtype, std::uint64_t rows_at_once,
                     std::uint64_t gap = 5) {
  PackedDense packed;
  packed.bias = bias;
  EXPECT_TRUE(kernel.pack(w.view, packed)) << kernel.name;
  const std::uint64_t M = x.view.rows, N = w.view.rows;
  Output y(dtype, M, N, gap);
  std::vector<float> scratch;
  for (std::uint64_t m = 0; m < M; m += rows_at_once)
    for (std::uint64_t n = 0; n < N; n += dense_outputs)
      EXPECT_TRUE(kernel.multiply(packed, x.view, m, std::min(m + rows_at_once, M), n,
                                  std::min(n + dense_outputs, N), y.view, scratch))
          << kernel.name;
  y.expect_gaps_untouched();
  return y;
}

bool runs(Isa isa) { return isa == Isa::reference || runs_here(isa); }

// Without a gap rows lie one behind the other, and may be used where they are.
constexpr std::uint64_t gaps[] = {0, 3};

void expect_product(std::mt19937& random, std::uint64_t M, std::uint64_t N, std::uint64_t K,
                    DType x_type, DType w_type, DType y_type, std::uint64_t gap = 3) {
  const TestActivation x = make_activation(random, x_type, M, K, gap),
                       w = make_activation(random, w_type, N, K, gap);
  const std::vector<float> bias = N % 2 ? make_bias(random, N) : std::vector<float>();
  for (const DenseKernel& kernel : dense_kernels()) {
    if (!runs(kernel.isa)) continue;
    const Output y = multiply_with(kernel, x, w, bias, y_type, M > 3 ? M / 2 : dense_rows, gap);
    for (std::uint64_t m = 0; m < M; ++m) {
      for (std::uint64_t n = 0; n < N; ++n) {
        double sum = bias.empty() ? 0 : static_cast<double>(bias[n]);
        for (std::uint64_t k = 0; k < K; ++k)
          sum += static_cast<double>(x.at(m, k)) * static_cast<double>(w.at(n, k));
        ASSERT_NEAR(y.at(m, n), sum, tolerance(K, y_type))
            << kernel.name << " M " << M << " N " << N << " K " << K << " x " << dtype_name(x_type)
            << " w " << dtype_name(w_type) << " y " << dtype_name(y_type) << " gap " << gap
            << " at " << m << ", " << n;
      }
    }
  }
}

TEST(Dense, every_mix_of_types_over_edges) {
  const std::uint32_t seed = seed_of_run();
  SCOPED_TRACE(replay(seed));
  std::mt19937 random(seed);
  for (const DType x : dtypes)
    for (const DType w : dtypes)
      for (const DType y : dtypes)
        for (const std::uint64_t gap : gaps)
          for (const std::uint64_t size : {1u, 15u, 16u, 17u, 33u})
            expect_product(random, size % 7 + 1, size, 34 - size, x, w, y, gap);
}

TEST(Dense, pieces_of_rows_and_outputs) {
  const std::uint32_t seed = seed_of_run() + 1;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const std::uint64_t N : {511u, 512u, 513u, 1030u})
    for (const DType type : dtypes) {
      expect_product(random, 1, N, 40, type, type, type);
      expect_product(random, 5, N, 100, type, DType::bf16, DType::f32);
    }
  expect_product(random, 257, 33, 64, DType::bf16, DType::bf16, DType::bf16);
  expect_product(random, 9, 70, 1000, DType::f32, DType::bf16, DType::f32);
}

TEST(Dense, random_shapes) {
  const std::uint32_t seed = seed_of_run() + 4;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  constexpr std::uint64_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127, 129};
  const auto size = [&] { return sizes[random() % std::size(sizes)]; };
  const auto type = [&] { return dtypes[random() % 3]; };
  for (int i = 0; i < 60; ++i)
    expect_product(random, size(), size(), size(), type(), type(), type(), gaps[random() % 2]);
  for (const std::uint64_t M : {255u, 256u, 257u})
    expect_product(random, M, 20, 17, type(), type(), type(), gaps[random() % 2]);
}

TEST(Dense, a_sum_of_no_terms_is_the_bias) {
  const TestActivation none{{}, {nullptr, DType::bf16, 3, 0, 0}};
  const TestActivation w{{}, {nullptr, DType::bf16, 2, 0, 0}};
  const Output y = multiply_with(dense_kernels().back(), none, w, {1.5f, -2}, DType::f32, 3);
  for (std::uint64_t m = 0; m < 3; ++m) {
    EXPECT_EQ(y.at(m, 0), 1.5);
    EXPECT_EQ(y.at(m, 1), -2);
  }
}

// Rounded once: a float sum of 257 + a float bias of -256.5 is 0.5, where a sum rounded to BF16
// first would give -0.5 or 1.5.
TEST(Dense, the_bias_is_added_before_the_one_rounding) {
  std::mt19937 random(5);
  for (const DType w_type : dtypes) {
    for (const DType x_type : dtypes) {
      TestActivation x = make_activation(random, x_type, 20, 257, 0),
                     w = make_activation(random, w_type, 20, 257, 0);
      for (TestActivation* ones : {&x, &w})
        for (std::uint64_t m = 0; m < 20; ++m)
          for (std::uint64_t k = 0; k < 257; ++k) ones->set(m, k, 1);
      for (const DenseKernel& kernel : dense_kernels()) {
        if (!runs(kernel.isa)) continue;
        for (const std::uint64_t gap : gaps) {
          const Output y = multiply_with(kernel, x, w, std::vector<float>(20, -256.5f), DType::bf16,
                                         dense_rows, gap);
          for (std::uint64_t n = 0; n < 20; ++n)
            ASSERT_EQ(y.at(7, n), 0.5)
                << kernel.name << " x " << dtype_name(x_type) << " w " << dtype_name(w_type);
        }
      }
    }
  }
}

TEST(Dense, huge_and_tiny_values) {
  std::mt19937 random(6);
  for (const DType type : {DType::f32, DType::bf16}) {
    TestActivation x = make_activation(random, type, 3, 64),
                   w = make_activation(random, type, 2, 64);
    for (std::uint64_t k = 0; k < 64; ++k) {
      x.set(0, k, k == 0 ? 0x1p100f : 0);
      x.set(1, k, 0x1p100f);
      x.set(2, k, 0x1p-60f);
      w.set(0, k, 0x1p20f);
      w.set(1, k, 0x1p-60f);
    }
    for (const DenseKernel& kernel : dense_kernels()) {
      if (!runs(kernel.isa)) continue;
      const Output y = multiply_with(kernel, x, w, {}, DType::f32, dense_rows);
      EXPECT_EQ(y.at(0, 0), 0x1p120) << kernel.name;
      EXPECT_EQ(y.at(1, 0), 0x1p126) << kernel.name;
      EXPECT_EQ(y.at(2, 1), 0x1p-114) << kernel.name;
    }
    for (std::uint64_t k = 0; k < 64; ++k) w.set(0, k, 0x1p28f);
    for (const DenseKernel& kernel : dense_kernels()) {
      if (!runs(kernel.isa)) continue;
      EXPECT_EQ(multiply_with(kernel, x, w, {}, DType::f32, dense_rows).at(1, 0),
                std::numeric_limits<double>::infinity())
          << kernel.name;
    }
  }
}

TEST(Dense, digits_of_a_float_activation_are_kept) {
  std::mt19937 random(3);
  TestActivation x = make_activation(random, DType::f32, 2, 8),
                 w = make_activation(random, DType::bf16, 4, 8);
  for (std::uint64_t k = 0; k < 8; ++k) x.set(0, k, k == 0 ? 1 + 0x1p-20f : 0);
  for (std::uint64_t n = 0; n < 4; ++n) w.set(n, 0, 1);
  for (const DenseKernel& kernel : dense_kernels()) {
    if (!runs(kernel.isa)) continue;
    const Output y = multiply_with(kernel, x, w, {}, DType::f32, dense_rows);
    EXPECT_EQ(y.at(0, 0), 1 + 0x1p-20) << kernel.name;
  }
}

TEST(Dense, nan_and_infinity_stay_in_their_rows) {
  std::mt19937 random(4);
  for (const DType type : dtypes) {
    TestActivation x = make_activation(random, type, 5, 32),
                   w = make_activation(random, type, 40, 32);
    x.set(2, 7, std::numeric_limits<float>::quiet_NaN());
    x.set(3, 7, std::numeric_limits<float>::infinity());
    for (std::uint64_t n = 0; n < 40; ++n) w.set(n, 7, 1);
    for (const DenseKernel& kernel : dense_kernels()) {
      if (!runs(kernel.isa)) continue;
      const Output y = multiply_with(kernel, x, w, {}, type, dense_rows);
      for (std::uint64_t n = 0; n < 40; ++n) {
        EXPECT_TRUE(std::isfinite(y.at(1, n))) << kernel.name;
        EXPECT_TRUE(std::isnan(y.at(2, n))) << kernel.name;
        EXPECT_TRUE(std::isinf(y.at(3, n))) << kernel.name;
        EXPECT_TRUE(std::isfinite(y.at(4, n))) << kernel.name;
      }
    }
  }
}

struct ConvCase {
  ImageSize in;
  std::uint64_t C = 1, O = 1;
  ConvOptions options;
  DType x = DType::f32, w = DType::f32, y = DType::f32;
  std::uint64_t gap = 3;
};

void expect_convolution(std::mt19937& random, const ConvCase& c) {
  const ConvOptions& o = c.options;
  const std::uint64_t taps = o.kernel_height * o.kernel_width;
  ConvShape shape{c.in, {}, c.C, c.O, o};
  shape.out = {(c.in.height + o.pad_top + o.pad_bottom - o.kernel_height) / o.stride + 1,
               (c.in.width + o.pad_left + o.pad_right - o.kernel_width) / o.stride + 1};
  const TestActivation x = make_activation(random, c.x, c.in.height * c.in.width, c.C, c.gap),
                       w = make_activation(random, c.w, c.O, c.C * taps, 0);
  PackedConv packed;
  packed.dtype = c.w;
  packed.in_channels = c.C;
  packed.out_channels = c.O;
  packed.options = o;
  if (c.O % 2) packed.bias = make_bias(random, c.O);
  packed.plain = AlignedBytes(w.bytes.size() - 1);
  std::copy(w.bytes.begin() + 1, w.bytes.end(), packed.plain.data());
  for (const ConvKernel& kernel : conv_kernels()) {
    if (!runs(kernel.isa)) continue;
    for (const std::uint64_t strip : {shape.out.height, std::uint64_t{1}, std::uint64_t{3}}) {
      Output y(c.y, shape.out.height * shape.out.width, c.O, c.gap);
      std::vector<float> scratch;
      for (std::uint64_t oy = 0; oy < shape.out.height; oy += strip)
        ASSERT_TRUE(kernel.convolve(packed, shape, x.view, oy,
                                    std::min(oy + strip, shape.out.height), y.view, scratch))
            << kernel.name;
      y.expect_gaps_untouched();
      for (std::uint64_t oy = 0; oy < shape.out.height; ++oy)
        for (std::uint64_t ox = 0; ox < shape.out.width; ++ox)
          for (std::uint64_t out = 0; out < c.O; ++out) {
            double sum = packed.bias.empty() ? 0 : static_cast<double>(packed.bias[out]);
            for (std::uint64_t i = 0; i < o.kernel_height; ++i)
              for (std::uint64_t j = 0; j < o.kernel_width; ++j) {
                const auto iy = static_cast<std::int64_t>(oy * o.stride + i) -
                                static_cast<std::int64_t>(o.pad_top),
                           ix = static_cast<std::int64_t>(ox * o.stride + j) -
                                static_cast<std::int64_t>(o.pad_left);
                if (iy < 0 || ix < 0 || iy >= static_cast<std::int64_t>(c.in.height) ||
                    ix >= static_cast<std::int64_t>(c.in.width))
                  continue;
                for (std::uint64_t ch = 0; ch < c.C; ++ch)
                  sum += static_cast<double>(x.at(static_cast<std::uint64_t>(iy) * c.in.width +
                                                      static_cast<std::uint64_t>(ix),
                                                  ch)) *
                         static_cast<double>(w.at(out, ch * taps + i * o.kernel_width + j));
              }
            ASSERT_NEAR(y.at(oy * shape.out.width + ox, out), sum, tolerance(c.C * taps, c.y))
                << kernel.name << " " << c.in.height << "x" << c.in.width << " kernel "
                << o.kernel_height << "x" << o.kernel_width << " stride " << o.stride << " strip "
                << strip << " at " << oy << ", " << ox << ", " << out;
          }
    }
  }
}

TEST(Conv, kernels_strides_and_padding) {
  const std::uint32_t seed = seed_of_run() + 2;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const std::uint64_t kernel : {1u, 2u, 3u, 5u, 7u})
    for (const std::uint64_t stride : {1u, 2u})
      for (const std::uint64_t pad : {std::uint64_t{0}, std::uint64_t{1}, kernel - 1}) {
        if (pad >= kernel) continue;
        const DType type = dtypes[(kernel + stride + pad) % 3];
        ConvCase c{{9, 11}, 5, 7, {kernel, kernel, stride, pad, pad / 2, 0, pad}, type, type, type};
        expect_convolution(random, c);
        c.in = {kernel, kernel};
        expect_convolution(random, c);
      }
  // A taller kernel than wide, and one pixel.
  expect_convolution(random, {{6, 8}, 3, 4, {3, 1, 1, 1, 0, 1, 0}});
  expect_convolution(random, {{1, 1}, 16, 32, {}});
}

TEST(Conv, every_mix_of_types_and_many_channels) {
  const std::uint32_t seed = seed_of_run() + 3;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  for (const DType x : dtypes)
    for (const DType w : dtypes)
      for (const DType y : dtypes)
        for (const std::uint64_t gap : gaps)
          expect_convolution(random, {{7, 6}, 20, 33, {}, x, w, y, gap});
  expect_convolution(random, {{8, 8}, 64, 48, {}, DType::bf16, DType::bf16, DType::bf16});
}

TEST(Conv, random_cases) {
  const std::uint32_t seed = seed_of_run() + 5;
  SCOPED_TRACE(replay(seed_of_run()));
  std::mt19937 random(seed);
  const auto from = [&](std::uint64_t low, std::uint64_t high) {
    return low + random() % (high - low + 1);
  };
  const auto type = [&] { return dtypes[random() % 3]; };
  for (int i = 0; i < 150; ++i) {
    ConvOptions o;
    o.kernel_height = from(1, 7);
    o.kernel_width = from(1, 7);
    o.stride = from(1, 2);
    o.pad_top = from(0, o.kernel_height - 1);
    o.pad_bottom = from(0, o.kernel_height - 1);
    o.pad_left = from(0, o.kernel_width - 1);
    o.pad_right = from(0, o.kernel_width - 1);
    const auto side = [&](std::uint64_t kernel, std::uint64_t padding) {
      return from(kernel > padding ? kernel - padding : 1, 12);
    };
    const ImageSize size = {side(o.kernel_height, o.pad_top + o.pad_bottom),
                            side(o.kernel_width, o.pad_left + o.pad_right)};
    expect_convolution(
        random, {size, from(1, 40), from(1, 40), o, type(), type(), type(), gaps[random() % 2]});
  }
}

TEST(Conv, nan_reaches_only_the_pixels_that_see_it) {
  std::mt19937 random(8);
  for (const DType type : dtypes) {
    TestActivation x = make_activation(random, type, 7 * 9, 16, 0),
                   w = make_activation(random, type, 16, 16 * 9, 0);
    x.set(3 * 9 + 4, 5, std::numeric_limits<float>::quiet_NaN());
    const ConvShape shape{{7, 9}, {7, 9}, 16, 16, {}};
    PackedConv packed{type, 16, 16, {}, {}, AlignedBytes(w.bytes.size() - 1)};
    std::copy(w.bytes.begin() + 1, w.bytes.end(), packed.plain.data());
    for (const ConvKernel& kernel : conv_kernels()) {
      if (!runs(kernel.isa)) continue;
      Output y(type, 7 * 9, 16, 0);
      std::vector<float> scratch;
      ASSERT_TRUE(kernel.convolve(packed, shape, x.view, 0, 7, y.view, scratch));
      for (int pixel = 0; pixel < 7 * 9; ++pixel)
        for (std::uint64_t out = 0; out < 16; ++out)
          EXPECT_EQ(std::isnan(y.at(static_cast<std::uint64_t>(pixel), out)),
                    std::abs(pixel / 9 - 3) <= 1 && std::abs(pixel % 9 - 4) <= 1)
              << kernel.name << " " << pixel << ", " << out;
    }
  }
}

}  // namespace
}  // namespace parfait::kernels
