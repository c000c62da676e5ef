#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/hadamard.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

std::string marker_with(std::string_view more) { return marker_text("convrot_w4a4", more); }
std::string group_marker(int group) {
  return marker_with("\"convrot_groupsize\": " + std::to_string(group));
}

TestFile file_of(const Shape& weight, const Shape& scale, std::string_view marker) {
  TestFile file;
  file.codes("a.weight", DType::i8, weight);
  file.floats("a.weight_scale", DType::f32, scale, 0.01f);
  file.marker("a", marker);
  return file;
}

// Bytes whose nibbles crowd around zero as those of weights do.
std::vector<std::byte> bell(std::size_t n) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 2);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) {
    const auto code = [&] {
      return static_cast<int>(std::fmin(std::fmax(std::nearbyint(normal(random)), -7), 7)) & 15;
    };
    const int even = code();
    b = static_cast<std::byte>(even | code() << 4);
  }
  return bytes;
}

TEST(ConvrotW4A4, the_specifications_bytes) {
  std::vector<std::byte> codes = byte_list({0xf9, 0x70, 0xc3, 0x21});
  const int expected[] = {-7, -1, 0, 7, 3, -4, 1, 2};
  for (std::uint64_t k = 0; k < 8; ++k) EXPECT_EQ(int4_code(codes.data(), k), expected[k]);
  codes.resize(32);
  TestFile file;
  file.raw("a.weight", DType::i8, {1, 32}, codes);
  file.values("a.weight_scale", DType::f32, {1}, {0.5f});
  file.marker("a", group_marker(4));
  const Opened opened(file);
  expect_clean(opened.check(CheckDepth::data));
  std::vector<float> row = opened.decode();
  ASSERT_EQ(row.size(), 64u);
  rotate_groups(row, 4);  // its own inverse; exact for such small numbers
  for (std::size_t k = 0; k < row.size(); ++k)
    EXPECT_EQ(row[k], k < 8 ? 0.5f * static_cast<float>(expected[k]) : 0.0f);
}

TEST(ConvrotW4A4, markers) {
  const Opened plain(file_of({4, 128}, {4}, group_marker(256)));
  expect_clean(plain.check());
  EXPECT_EQ(plain.layer().rows, 4u);
  EXPECT_EQ(plain.layer().columns, 256u);
  EXPECT_EQ(plain.layer().rotate_group, 256u);
  EXPECT_EQ(plain.layer().activation, Activation::int4);
  const Opened int8(file_of({4, 128}, {4},
                            marker_with("\"convrot_groupsize\": 64, \"linear_dtype\": "
                                        "\"int8\", \"quant_group_size\": 64")));
  expect_clean(int8.check());
  EXPECT_EQ(int8.layer().activation, Activation::int8);
  EXPECT_EQ(int8.layer().rotate_group, 64u);
  const Opened nested(
      file_of({4, 128}, {4},
              marker_with("\"params\": {\"convrot_groupsize\": 16, \"linear_dtype\": \"int8\"}")));
  EXPECT_EQ(nested.layer().rotate_group, 16u);
  EXPECT_EQ(nested.layer().activation, Activation::int8);
  const Opened by_default(file_of({4, 128}, {4}, marker_with("")));
  EXPECT_EQ(by_default.layer().rotate_group, 256u);
  expect_finding(by_default.check(), ErrorCode::marker_default, Severity::note);
  expect_sound(by_default.check());

  expect_finding(Opened(file_of({4, 128}, {4},
                                marker_with("\"convrot_groupsize\": 256, "
                                            "\"linear_dtype\": \"fp8\"")))
                     .check(),
                 ErrorCode::marker_key, Severity::error, {"fp8", "int4 or int8"});
  expect_finding(Opened(file_of({4, 128}, {4},
                                marker_with("\"convrot_groupsize\": 256, "
                                            "\"quant_group_size\": 128")))
                     .check(),
                 ErrorCode::marker_key, Severity::error, {"128", "64"});
  expect_finding(
      Opened(file_of({4, 128}, {4}, marker_with("\"convrot_groupsize\": 256, \"convrot\": false")))
          .check(),
      ErrorCode::marker_key, Severity::error, {"convrot false"});
}

TEST(ConvrotW4A4, malformed_parts) {
  for (const Shape& scale : {Shape{}, {1}, {3}, {5}, {1, 4}, {128}})
    expect_finding(Opened(file_of({4, 128}, scale, group_marker(256))).check(),
                   ErrorCode::part_shape, Severity::error, {"a.weight_scale"});
  expect_clean(Opened(file_of({4, 128}, {4, 1}, group_marker(256))).check());
  for (const std::uint64_t columns : {32u, 96u, 200u})
    expect_finding(Opened(file_of({4, columns / 2}, {4}, group_marker(4))).check(),
                   ErrorCode::layer_columns, Severity::error,
                   {"64", "K = " + std::to_string(columns)});
  expect_finding(Opened(file_of({4, 160}, {4}, group_marker(256))).check(),
                 ErrorCode::layer_columns, Severity::error, {"K = 320", "256"});
  expect_finding(Opened(file_of({4, 128}, {4}, group_marker(128))).check(), ErrorCode::layer_group,
                 Severity::error, {"128", "power of 4"});
  expect_finding(Opened(file_of({2, 4, 128}, {8}, group_marker(256))).check(),
                 ErrorCode::layer_kind, Severity::error);
  TestFile noted = file_of({4, 128}, {4}, group_marker(256));
  noted.floats("a.input_scale", DType::f32, {}, 1);
  expect_finding(Opened(noted).check(), ErrorCode::part_ignored, Severity::note, {"input_scale"});
}

TEST(ConvrotW4A4, split_and_size) {
  const struct {
    int group;
    std::uint64_t columns;
  } cases[] = {{4, 64}, {16, 64}, {64, 64}, {256, 256}, {1024, 1024}};
  for (const auto& c : cases) {
    const Opened opened(file_of({4, 512}, {4}, group_marker(c.group)));
    const SplitRule rule = opened.layer().format->split(opened.layer());
    EXPECT_EQ(rule.rows, 1u);
    EXPECT_EQ(rule.columns, c.columns) << c.group;
    EXPECT_EQ(rule.why, "ConvRot group " + std::to_string(c.group) + ", pack 64");
    expect_size_matches(opened.layer());
    EXPECT_EQ(opened.layer().format->size(opened.layer(), 3, 256), 3u * 128 + 12);
  }
}

TEST(ConvrotW4A4, deep_check) {
  TestFile sound;
  sound.raw("a.weight", DType::i8, {64, 128}, bell(64 * 128));
  sound.floats("a.weight_scale", DType::f32, {64}, 0.01f);
  sound.marker("a", group_marker(256));
  expect_clean(Opened(sound).check(CheckDepth::data));

  TestFile lowest;
  std::vector<std::byte> codes = bell(64 * 128);
  codes[200] = std::byte{0x80};  // column 145 of row 1
  codes[300] = std::byte{0x88};
  lowest.raw("a.weight", DType::i8, {64, 128}, codes);
  lowest.floats("a.weight_scale", DType::f32, {64}, 0.01f);
  lowest.marker("a", group_marker(256));
  const auto findings = Opened(lowest).check(CheckDepth::data);
  expect_finding(findings, ErrorCode::data_code_range, Severity::warning,
                 {"-8", "3, the first at index 401"});
  expect_sound(findings);

  TestFile flat;
  std::vector<std::byte> bytes(64 * 128);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761u >> 9);
  flat.raw("a.weight", DType::i8, {64, 128}, bytes);
  flat.floats("a.weight_scale", DType::f32, {64}, 0.01f);
  flat.marker("a", group_marker(256));
  expect_finding(Opened(flat).check(CheckDepth::data), ErrorCode::data_implausible,
                 Severity::warning);

  TestFile lost;
  lost.raw("a.weight", DType::i8, {2, 32}, bell(64));
  lost.values("a.weight_scale", DType::f32, {2}, {1, 0});
  lost.marker("a", group_marker(64));
  expect_finding(Opened(lost).check(CheckDepth::data), ErrorCode::data_zero_scale, Severity::error,
                 {"index 1"});
}

}  // namespace
}  // namespace parfait::formats
