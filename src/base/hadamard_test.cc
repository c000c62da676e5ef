#include "base/hadamard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace parfait {
namespace {

// The sign of entry (i, j): negative for an odd number of base-4 digits that add up to 3.
int closed_form(std::uint64_t i, std::uint64_t j, std::uint64_t group) {
  int sign = 1;
  for (; group > 1; group /= 4, i /= 4, j /= 4)
    if (i % 4 + j % 4 == 3) sign = -sign;
  return sign;
}

constexpr std::uint64_t groups[] = {4, 16, 64, 256, 1024};

std::string signs_of_row(std::uint64_t row, std::uint64_t group) {
  std::vector<float> unit(group);
  unit[row] = 1;
  rotate_groups(unit, group);
  std::string signs;
  for (float value : unit) signs += value > 0 ? '+' : '-';
  return signs;
}

TEST(Hadamard, groups_are_powers_of_four) {
  for (std::uint64_t group : {4u, 16u, 64u, 256u, 1024u, 4096u, 1u << 30})
    EXPECT_TRUE(is_rotation_group(group)) << group;
  for (std::uint64_t group : {0u, 1u, 2u, 3u, 5u, 8u, 12u, 32u, 128u, 255u, 257u, 512u, 320u})
    EXPECT_FALSE(is_rotation_group(group)) << group;
  EXPECT_TRUE(is_rotation_group(std::uint64_t{1} << 62));
  EXPECT_FALSE(is_rotation_group(std::uint64_t{1} << 63));
}

TEST(Hadamard, every_entry_has_its_closed_form) {
  for (std::uint64_t group : groups) {
    const float entry = 1 / std::sqrt(static_cast<float>(group));
    for (std::uint64_t i = 0; i < group; ++i) {
      std::vector<float> unit(group);
      unit[i] = 1;
      rotate_groups(unit, group);
      for (std::uint64_t j = 0; j < group; ++j)
        ASSERT_EQ(unit[j], entry * static_cast<float>(closed_form(i, j, group)))
            << group << ": " << i << ", " << j;
    }
  }
}

TEST(Hadamard, vectors_of_the_specification) {
  std::vector<float> squares(16);
  for (std::size_t i = 0; i < 16; ++i) squares[i] = static_cast<float>(i * i);
  rotate_groups(squares, 16);
  const std::vector<float> expected = {-34, -29, -26, -25, 46,  59,  70,  79,
                                       94,  115, 134, 151, 110, 139, 166, 191};
  EXPECT_EQ(squares, expected);
  EXPECT_EQ(signs_of_row(0, 16), "+++-+++-+++----+");
  EXPECT_EQ(signs_of_row(1, 16), "++-+++-+++-+--+-");
  EXPECT_EQ(signs_of_row(2, 16), "+-+++-+++-++-+--");
  EXPECT_EQ(signs_of_row(3, 16), "-+++-+++-++++---");
  EXPECT_EQ(signs_of_row(5, 16), "++-+++-+--+-++-+");
  std::vector<float> row = {1, 2, -3, 0.5f};
  rotate_groups(row, 4);
  EXPECT_EQ(row, (std::vector<float>{-0.25f, 3.25f, -1.75f, -0.75f}));
}

TEST(Hadamard, twice_is_the_identity) {
  const unsigned seed = 4;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::uint64_t group : groups) {
    std::vector<float> source(group * 3);
    for (float& value : source) value = normal(random);
    std::vector<float> twice = source;
    rotate_groups(twice, group);
    EXPECT_NE(twice, source);
    rotate_groups(twice, group);
    for (std::size_t i = 0; i < source.size(); ++i) EXPECT_NEAR(twice[i], source[i], 4e-6f);
    // Small whole numbers come back exactly: all sums are.
    for (float& value : source) value = std::nearbyint(value * 8);
    twice = source;
    rotate_groups(twice, group);
    rotate_groups(twice, group);
    EXPECT_EQ(twice, source);
  }
}

TEST(Hadamard, constants_and_ramps_are_fixed_points) {
  for (std::uint64_t group : groups) {
    std::vector<float> constant(group, 0.75f), ramp(group);
    for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<float>(i);
    const std::vector<float> before = constant, line = ramp;
    rotate_groups(constant, group);
    rotate_groups(ramp, group);
    EXPECT_EQ(constant, before);
    EXPECT_EQ(ramp, line) << "so no test may use one";
  }
}

TEST(Hadamard, keeps_lengths_and_dot_products) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  std::vector<float> a(256), b(256);
  for (float& value : a) value = normal(random);
  for (float& value : b) value = normal(random);
  const auto dot = [](const std::vector<float>& x, const std::vector<float>& y) {
    double sum = 0;
    for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<double>(x[i]) * y[i];
    return sum;
  };
  const double length = dot(a, a), product = dot(a, b);
  rotate_groups(a, 64);
  rotate_groups(b, 64);
  EXPECT_NEAR(dot(a, a), length, 1e-4);
  EXPECT_NEAR(dot(a, b), product, 1e-4);
}

TEST(Hadamard, groups_do_not_touch_each_other) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> all(64 * 5);
  for (float& value : all) value = normal(random);
  std::vector<float> by_group = all;
  rotate_groups(all, 64);
  for (std::size_t g = 0; g < 5; ++g) rotate_groups(std::span(by_group).subspan(g * 64, 64), 64);
  EXPECT_EQ(all, by_group);
  rotate_groups({}, 256);
}

TEST(Hadamard, no_group_leaves_values_as_they_are) {
  std::vector<float> v = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::vector<float> before = v;
  rotate_groups(v, 0);
  EXPECT_EQ(v, before);
}

TEST(Hadamard, the_order_of_sums_is_the_written_one) {
  // Faster paths must match bit for bit, so the order is part of the contract.
  const float a = 1e8f, b = 1, c = -1e8f, d = 1;
  std::vector<float> v = {a, b, c, d};
  rotate_groups(v, 4);
  const float t = 0.5f * ((a + b) + (c + d));
  EXPECT_EQ(v, (std::vector<float>{t - d, t - c, t - b, t - a}));
}

}  // namespace
}  // namespace parfait
