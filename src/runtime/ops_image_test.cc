// Group norm and upsampling as a caller sees them: what they compute, that threads and instruction
// sets don't change a bit of it, and what is refused. The kernels' own tests look closer.

#include "runtime/ops_image.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/floats.h"
#include "runtime/ops.h"

namespace parfait::runtime {
namespace {

struct Image {
  std::vector<std::byte> bytes;
  DType dtype;
  std::uint64_t pixels, channels, stride;

  Image(DType type, std::uint64_t p, std::uint64_t c, std::uint64_t gap = 2)
      : bytes(p * (c + gap) * (dtype_bits(type) / 8)),
        dtype(type),
        pixels(p),
        channels(c),
        stride(c + gap) {}
  double at(std::uint64_t p, std::uint64_t c) const {
    return load_float(dtype, bytes.data(), p * stride + c);
  }
  ConstMatrix in() const { return {bytes.data(), dtype, pixels, channels, stride}; }
  Matrix out() { return {bytes.data(), dtype, pixels, channels, stride}; }
};

// Values whose mean and spread differ by channel and drift over the image.
Image random_image(DType dtype, std::uint64_t pixels, std::uint64_t channels, std::uint32_t seed) {
  Image image(dtype, pixels, channels);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  for (std::uint64_t p = 0; p < pixels; ++p)
    for (std::uint64_t c = 0; c < channels; ++c)
      store_float(dtype, image.bytes.data(), p * image.stride + c,
                  normal(random) * (1 + static_cast<float>(c % 5)) + static_cast<float>(c % 3) +
                      static_cast<float>(p) / static_cast<float>(pixels));
  return image;
}

GroupNormOptions options_of(std::uint64_t groups, std::span<const float> weight = {},
                            std::span<const float> bias = {}) {
  GroupNormOptions options;
  options.groups = groups;
  options.weight = weight;
  options.bias = bias;
  return options;
}

std::vector<float> random_vector(std::uint64_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> values(size);
  for (float& v : values) v = normal(random);
  return values;
}

TEST(OpsImage, group_norm_is_what_its_formula_says) {
  struct Shape {
    std::uint64_t pixels, channels, groups;
  };
  Ops ops(2, machine_isas());
  for (const Shape& s :
       {Shape{1, 6, 2}, Shape{128, 32, 32}, Shape{300, 24, 3}, Shape{1000, 64, 1}}) {
    const Image x = random_image(DType::f32, s.pixels, s.channels, 3);
    const std::vector<float> weight = random_vector(s.channels, 4),
                             bias = random_vector(s.channels, 5);
    for (int which = 0; which < 8; ++which) {
      GroupNormOptions options = options_of(s.groups);
      options.epsilon = 0.01f;
      if (which & 1) options.weight = weight;
      if (which & 2) options.bias = bias;
      options.silu = which & 4;
      Image y(DType::f32, s.pixels, s.channels);
      ASSERT_TRUE(group_norm(ops, x.in(), options, y.out()).ok());
      const std::uint64_t width = s.channels / s.groups;
      const double count = static_cast<double>(s.pixels * width);
      for (std::uint64_t g = 0; g < s.groups; ++g) {
        double mean = 0, variance = 0;
        for (std::uint64_t p = 0; p < s.pixels; ++p)
          for (std::uint64_t c = g * width; c < (g + 1) * width; ++c) mean += x.at(p, c) / count;
        for (std::uint64_t p = 0; p < s.pixels; ++p)
          for (std::uint64_t c = g * width; c < (g + 1) * width; ++c)
            variance += std::pow(x.at(p, c) - mean, 2) / count;
        for (std::uint64_t p = 0; p < s.pixels; ++p) {
          for (std::uint64_t c = g * width; c < (g + 1) * width; ++c) {
            double want = (x.at(p, c) - mean) / std::sqrt(variance + double{options.epsilon});
            if (which & 1) want *= weight[c];
            if (which & 2) want += bias[c];
            if (options.silu) want /= 1 + std::exp(-want);
            ASSERT_NEAR(y.at(p, c), want, 1e-5) << s.pixels << " pixels, options " << which;
          }
        }
      }
    }
  }
}

TEST(OpsImage, threads_and_instruction_sets_change_no_bit) {
  constexpr std::uint64_t height = 29, width = 37, channels = 44;
  const std::vector<float> weight = random_vector(channels, 4), bias = random_vector(channels, 5);
  GroupNormOptions options = options_of(11, weight, bias);
  options.silu = true;
  for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const Image x = random_image(dtype, height * width, channels, 6);
    Ops plain(1, {Isa::reference});
    Image normal(dtype, x.pixels, channels), large(DType::bf16, x.pixels * 4, channels);
    ASSERT_TRUE(group_norm(plain, x.in(), options, normal.out()).ok());
    ASSERT_TRUE(upsample_nearest(plain, x.in(), {height, width}, 2, large.out()).ok());
    for (Isa isa : machine_isas()) {
      for (unsigned threads : {1u, 2u, 3u, 7u}) {
        Ops ops(threads, isas_within(isa));
        const std::string what = std::string(isa_name(isa)) + ' ' + std::to_string(threads);
        Image y(dtype, x.pixels, channels), z(DType::bf16, x.pixels * 4, channels);
        ASSERT_TRUE(group_norm(ops, x.in(), options, y.out()).ok());
        EXPECT_EQ(y.bytes, normal.bytes) << what;
        ASSERT_TRUE(upsample_nearest(ops, x.in(), {height, width}, 2, z.out()).ok());
        EXPECT_EQ(z.bytes, large.bytes) << what;
        Image own = x;
        ASSERT_TRUE(group_norm(ops, own.in(), options, own.out()).ok());
        for (std::uint64_t p = 0; p < x.pixels; ++p)
          for (std::uint64_t c = 0; c < channels; ++c)
            ASSERT_EQ(own.at(p, c), y.at(p, c)) << what << " in place";
      }
    }
  }
}

TEST(OpsImage, one_bad_value_spoils_its_group_only) {
  Ops ops(2, machine_isas());
  Image x = random_image(DType::f32, 200, 8, 7);
  store_float(DType::f32, x.bytes.data(), 150 * x.stride + 5, INFINITY);
  Image y(DType::f32, 200, 8);
  ASSERT_TRUE(group_norm(ops, x.in(), options_of(4), y.out()).ok());
  for (std::uint64_t p = 0; p < 200; ++p)
    for (std::uint64_t c = 0; c < 8; ++c)
      EXPECT_EQ(std::isnan(y.at(p, c)), c == 4 || c == 5) << p << ' ' << c;
}

TEST(OpsImage, equal_pixels_have_no_variance) {
  Ops ops(1, machine_isas());
  Image x(DType::f32, 500, 6), y(DType::f32, 500, 6);
  for (std::uint64_t i = 0; i < 500 * x.stride; ++i) store_float(DType::f32, x.bytes.data(), i, 3);
  ASSERT_TRUE(group_norm(ops, x.in(), options_of(2), y.out()).ok());
  for (std::uint64_t p = 0; p < 500; ++p)
    for (std::uint64_t c = 0; c < 6; ++c) ASSERT_EQ(y.at(p, c), 0);
}

TEST(OpsImage, upsampling_repeats_pixels) {
  Ops ops(3, machine_isas());
  constexpr std::uint64_t height = 3, width = 5, channels = 7;
  const Image x = random_image(DType::f16, height * width, channels, 8);
  for (std::uint64_t factor : {1u, 2u, 3u}) {
    Image y(DType::f32, height * width * factor * factor, channels);
    ASSERT_TRUE(upsample_nearest(ops, x.in(), {height, width}, factor, y.out()).ok());
    for (std::uint64_t r = 0; r < height * factor; ++r)
      for (std::uint64_t p = 0; p < width * factor; ++p)
        for (std::uint64_t c = 0; c < channels; ++c)
          ASSERT_EQ(y.at(r * width * factor + p, c), x.at(r / factor * width + p / factor, c));
  }
}

TEST(OpsImage, no_pixels_and_no_channels_are_no_work) {
  Ops ops(2, machine_isas());
  const ConstMatrix no_pixels{nullptr, DType::f32, 0, 8, 8},
      no_channels{nullptr, DType::f32, 6, 0, 0};
  EXPECT_TRUE(group_norm(ops, no_pixels, options_of(4), {nullptr, DType::f32, 0, 8, 8}).ok());
  EXPECT_TRUE(group_norm(ops, no_channels, options_of(4), {nullptr, DType::f32, 6, 0, 0}).ok());
  EXPECT_TRUE(upsample_nearest(ops, no_pixels, {0, 9}, 2, {nullptr, DType::f32, 0, 8, 8}).ok());
  EXPECT_TRUE(upsample_nearest(ops, no_channels, {2, 3}, 2, {nullptr, DType::f32, 24, 0, 0}).ok());
}

TEST(OpsImage, what_does_not_fit_is_refused) {
  Ops ops(1, machine_isas());
  const Image x = random_image(DType::f32, 6, 8, 9);
  Image y(DType::f32, 6, 8);
  const std::vector<std::byte> before = y.bytes;
  const std::vector<float> nine(9);
  const auto refused = [&](const Result<Done>& done, ErrorCode code, std::string_view words) {
    ASSERT_FALSE(done.ok()) << words;
    EXPECT_EQ(done.error().code, code) << done.error().message;
    EXPECT_NE(done.error().message.find(words), std::string::npos) << done.error().message;
    EXPECT_EQ(y.bytes, before) << words;
  };
  const auto shape = ErrorCode::run_shape;
  refused(group_norm(ops, x.in(), options_of(3), y.out()), shape, "8 channels");
  refused(group_norm(ops, x.in(), options_of(0), y.out()), shape, "0 groups");
  refused(group_norm(ops, x.in(), options_of(4, nine), y.out()), shape, "weight has 9");
  refused(group_norm(ops, x.in(), options_of(4, {}, nine), y.out()), shape, "bias has 9");
  refused(group_norm(ops, x.in(), options_of(4), {y.bytes.data(), DType::f32, 5, 8, 8}), shape,
          "group_norm: y is [5, 8]");
  refused(group_norm(ops, x.in(), options_of(4), {y.bytes.data(), DType::u8, 6, 8, 8}),
          ErrorCode::run_dtype, "group_norm: y is U8");
  refused(upsample_nearest(ops, x.in(), {2, 4}, 1, y.out()), shape, "x is [6, 8], expected [8, 8]");
  refused(upsample_nearest(ops, x.in(), {2, 3}, 2, y.out()), shape,
          "y is [6, 8], expected [24, 8]");
  refused(upsample_nearest(ops, x.in(), {2, 3}, 0, y.out()), shape, "the factor is 0");
  constexpr std::uint64_t huge = std::uint64_t{1} << 33;
  refused(upsample_nearest(ops, x.in(), {huge, huge}, 1, y.out()), shape, "is too large");
  refused(upsample_nearest(ops, x.in(), {2, 3}, huge, y.out()), shape, "are too many");
}

}  // namespace
}  // namespace parfait::runtime
