#include "formats/common.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "formats/data_checks.h"
#include "formats/format_testing.h"
#include "formats/relative_scales.h"

namespace parfait::formats {
namespace {

TEST(BlockScales, offsets_of_the_specification) {
  const BlockScales scales{129, 8};
  const struct {
    std::uint64_t row, column, offset;
  } cases[] = {{0, 0, 0},   {0, 1, 1},     {0, 4, 512},    {1, 0, 16},    {32, 0, 4},
               {33, 2, 22}, {127, 3, 511}, {128, 0, 1024}, {129, 5, 1553}};
  for (const auto& c : cases) EXPECT_EQ(scales.offset(c.row, c.column), c.offset);
}

TEST(BlockScales, stored_size_is_that_of_whole_tiles) {
  EXPECT_EQ((BlockScales{300, 17}.stored_bytes()), 7680u);
  EXPECT_EQ((BlockScales{1, 1}.stored_bytes()), 512u);
  EXPECT_EQ((BlockScales{128, 4}.stored_bytes()), 512u);
  EXPECT_EQ((BlockScales{129, 4}.stored_bytes()), 1024u);
  EXPECT_EQ((BlockScales{std::uint64_t{1} << 62, std::uint64_t{1} << 40}.stored_bytes()),
            std::numeric_limits<std::uint64_t>::max());
}

TEST(BlockScales, every_place_is_used_once) {
  const BlockScales scales{256, 12};
  std::set<std::uint64_t> seen;
  for (std::uint64_t row = 0; row < scales.stored_rows(); ++row)
    for (std::uint64_t column = 0; column < scales.stored_columns(); ++column)
      seen.insert(scales.offset(row, column));
  EXPECT_EQ(seen.size(), scales.stored_bytes());
  EXPECT_EQ(*seen.rbegin(), scales.stored_bytes() - 1);
}

TEST(Common, nibbles_in_both_orders) {
  const std::byte row[] = {std::byte{0x1f}, std::byte{0x34}};
  const unsigned low_first[] = {15, 1, 4, 3}, high_first[] = {1, 15, 3, 4};
  for (std::uint64_t k = 0; k < 4; ++k) {
    EXPECT_EQ(nibble_low_first(row, k), low_first[k]);
    EXPECT_EQ(nibble_high_first(row, k), high_first[k]);
  }
}

TEST(Common, tables_of_small_floats) {
  for (DType dtype : {DType::f8_e4m3, DType::f8_e5m2, DType::f8_e8m0})
    for (unsigned code = 0; code < 256; ++code) {
      const auto byte = static_cast<std::byte>(code);
      const float expected = load_float(dtype, &byte, 0), got = float8_values(dtype)[code];
      EXPECT_TRUE(got == expected || (std::isnan(got) && std::isnan(expected)))
          << dtype_name(dtype) << " " << code;
    }
}

TEST(Common, int8_levels_round_to_even_and_saturate) {
  EXPECT_EQ(int8_level(0.5f, 1), 0);
  EXPECT_EQ(int8_level(1.5f, 1), 2);
  EXPECT_EQ(int8_level(2.5f, 1), 2);
  EXPECT_EQ(int8_level(-2.5f, 1), -2);
  EXPECT_EQ(int8_level(-3.5f, 1), -4);
  EXPECT_EQ(int8_level(126.5f, 1), 126);
  EXPECT_EQ(int8_level(127.5f, 1), 127);
  EXPECT_EQ(int8_level(-8, 448), -127);
  EXPECT_EQ(int8_level(31, 448), 127);
  EXPECT_TRUE(std::isnan(int8_level(1, std::numeric_limits<float>::quiet_NaN())));
  for (int level = -32; level < 32; ++level)
    for (unsigned code = 0; code < 0x7f; ++code) {
      const float s_rel = e4m3_to_float(static_cast<std::uint8_t>(code));
      const float exact = std::nearbyint(static_cast<float>(level) * s_rel);
      EXPECT_EQ(int8_level(static_cast<float>(level), s_rel),
                std::fmin(std::fmax(exact, -127), 127));
    }
}

TEST(DataChecks, counting_bytes_and_nibbles) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 1027; ++i) bytes.push_back(static_cast<std::byte>(i % 3 == 0 ? 0x1f : i));
  ByteCounts plain = {};
  for (std::byte b : bytes) ++plain[std::to_integer<unsigned>(b)];
  EXPECT_EQ(count_bytes(bytes), plain);
  NibbleCounts nibbles = {};
  for (std::byte b : bytes) {
    ++nibbles[std::to_integer<unsigned>(b) & 15];
    ++nibbles[std::to_integer<unsigned>(b) >> 4];
  }
  EXPECT_EQ(count_nibbles(bytes), nibbles);
}

// Layers whose parts and shapes the shared checks judge, through a format that uses them all.
using testing::Opened;
using testing::Shape;
using testing::TestFile;

std::vector<Finding> check_int8(const Shape& weight, const Shape& scale, const Shape& bias,
                                std::string_view marker = R"({"format": "int8_tensorwise"})") {
  TestFile file;
  file.codes("a.weight", DType::i8, weight);
  file.floats("a.weight_scale", DType::f32, scale, 0.01f);
  if (!bias.empty()) file.floats("a.bias", DType::f32, bias, 0.5f);
  file.marker("a", marker);
  return Opened(file).check();
}

TEST(Common, scales_by_row_of_every_rank) {
  for (const Shape& scale : {Shape{}, {1}, {1, 1}, {6}, {6, 1}, {6, 1, 1, 1}})
    testing::expect_clean(check_int8({6, 8}, scale, {6}));
  for (const Shape& scale : {Shape{0}, {5}, {7}, {1, 6}, {8}, {6, 8}, {2, 3}, {3, 2, 1}})
    testing::expect_finding(check_int8({6, 8}, scale, {6}), ErrorCode::part_shape, Severity::error,
                            {"a.weight_scale", shape_text(scale)});
}

TEST(Common, an_empty_scale_is_named_as_such) {
  testing::expect_finding(check_int8({6, 8}, {0}, {}), ErrorCode::part_shape, Severity::error,
                          {"empty"});
}

TEST(Common, bias_shapes) {
  testing::expect_finding(check_int8({6, 8}, {}, {5}), ErrorCode::part_shape, Severity::error,
                          {"a.bias", "[5]", "[6]"});
  testing::expect_finding(check_int8({6, 8}, {}, {6, 1}), ErrorCode::part_shape, Severity::error,
                          {"a.bias"});
}

TEST(Common, weights_without_rows_or_columns) {
  for (const Shape& weight : {Shape{8}, {0, 8}, {8, 0}})
    testing::expect_finding(check_int8(weight, {}, {}), ErrorCode::part_shape, Severity::error,
                            {"a.weight", "[N, K]"});
}

TEST(Common, rotation_groups) {
  const auto marker = [](int group) {
    return testing::marker_text(
        "int8_tensorwise", "\"convrot\": true, \"convrot_groupsize\": " + std::to_string(group));
  };
  for (int group : {4, 16, 64, 256, 1024})
    testing::expect_clean(check_int8({6, 1024}, {6, 1}, {}, marker(group)));
  for (int group : {1, 2, 8, 32, 128, 512, 12, 257})
    testing::expect_finding(check_int8({6, 1024}, {6, 1}, {}, marker(group)),
                            ErrorCode::layer_group, Severity::error,
                            {"K = 1024", std::to_string(group), "power of 4"});
  for (const std::uint64_t columns : {320u, 640u, 1152u, 2520u, 3360u})
    testing::expect_finding(check_int8({2, columns}, {2, 1}, {}, marker(256)),
                            ErrorCode::layer_columns, Severity::error,
                            {"K = " + std::to_string(columns), "256"});
}

TEST(Common, keys_without_use_are_noted) {
  testing::expect_finding(
      check_int8({6, 8}, {}, {}, testing::marker_text("int8_tensorwise", "\"group_size\": 64")),
      ErrorCode::marker_ignored, Severity::note, {"group_size"});
  testing::expect_finding(
      check_int8({6, 8}, {}, {},
                 testing::marker_text("int8_tensorwise", "\"linear_dtype\": \"int4\"")),
      ErrorCode::marker_ignored, Severity::note, {"linear_dtype"});
}

}  // namespace
}  // namespace parfait::formats
