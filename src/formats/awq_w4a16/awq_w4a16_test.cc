#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/floats.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

constexpr std::string_view awq_marker = R"({"format": "awq_w4a16", "group_size": 64})";

TestFile file_of(const Shape& weight, const Shape& scale, const Shape& zeros,
                 std::string_view marker = awq_marker, DType dtype = DType::bf16) {
  TestFile file;
  file.codes("a.weight", DType::i8, weight);
  file.floats("a.weight_scale", dtype, scale, 0.01f);
  file.floats("a.weight_zeros", dtype, zeros, 0.02f);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

TEST(AwqW4A16, every_code_rounded_to_the_scales_type) {
  std::vector<std::byte> codes;  // 0, 1, ..., 15 in the order of columns
  for (int code = 0; code < 16; code += 2)
    codes.push_back(static_cast<std::byte>(code | (code + 1) << 4));
  for (DType dtype : {DType::bf16, DType::f16, DType::f32}) {
    TestFile file;
    file.raw("a.weight", DType::i8, {1, 8}, codes);
    file.values("a.weight_scale", dtype, {2, 1}, {0.0123f, 0.37f});
    file.values("a.weight_zeros", dtype, {2, 1}, {-0.0456f, 1.5f});
    file.marker("a", marker_text("awq_w4a16", "\"group_size\": 8"));
    const Opened opened(file);
    expect_clean(opened.check(CheckDepth::data));
    const std::vector<float> got = opened.decode();
    const auto round = [&](float v) {
      return dtype == DType::bf16 ? round_to_bf16(v) : dtype == DType::f16 ? round_to_f16(v) : v;
    };
    for (int k = 0; k < 16; ++k) {
      const float scale = round(k < 8 ? 0.0123f : 0.37f), zero = round(k < 8 ? -0.0456f : 1.5f);
      const float expected = round(round(static_cast<float>(k - 8) * scale) + zero);
      EXPECT_EQ(got[static_cast<std::size_t>(k)], expected) << dtype_name(dtype) << " " << k;
    }
  }
}

TEST(AwqW4A16, scales_are_a_row_for_each_group) {
  TestFile file;
  file.raw("a.weight", DType::i8, {2, 4}, bytes_of(8, 0x99));  // every code is 9: one step
  file.values("a.weight_scale", DType::bf16, {2, 2}, {1, 2, 4, 8});
  file.values("a.weight_zeros", DType::bf16, {2, 2}, {0, 0, 0, 0.5f});
  file.marker("a", marker_text("awq_w4a16", "\"group_size\": 4"));
  EXPECT_EQ(Opened(file).decode(),
            (std::vector<float>{1, 1, 1, 1, 4, 4, 4, 4, 2, 2, 2, 2, 8.5f, 8.5f, 8.5f, 8.5f}));
  EXPECT_EQ(Opened(file).decode_rows("a", 1, 1),
            (std::vector<float>{2, 2, 2, 2, 8.5f, 8.5f, 8.5f, 8.5f}));
}

TEST(AwqW4A16, groups) {
  const Opened told(
      file_of({4, 128}, {2, 4}, {2, 4}, marker_text("awq_w4a16", "\"group_size\": 128")));
  EXPECT_EQ(told.layer().scale_group, 128u);
  expect_clean(told.check());
  const Opened by_default(file_of({4, 128}, {4, 4}, {4, 4}, marker_text("awq_w4a16")));
  EXPECT_EQ(by_default.layer().scale_group, 64u);
  expect_finding(by_default.check(), ErrorCode::marker_default, Severity::note, {"64"});
  const Opened proven(file_of({4, 128}, {8, 4}, {8, 4}, ""));
  EXPECT_EQ(proven.layer().format->name, "awq_w4a16");
  EXPECT_EQ(proven.layer().scale_group, 32u);
  expect_sound(proven.check());
  // The marker's group contradicts the scales.
  const auto findings = Opened(file_of({4, 128}, {8, 4}, {4, 4})).check();
  expect_finding(findings, ErrorCode::part_shape, Severity::error,
                 {"a.weight_scale", "[8, 4]", "[4, 4]"});
  expect_finding(Opened(file_of({4, 48}, {1, 4}, {1, 4})).check(), ErrorCode::layer_columns,
                 Severity::error, {"K = 96", "64"});
}

TEST(AwqW4A16, the_singular_spelling_of_a_fork) {
  TestFile file;
  file.codes("a.weight", DType::i8, {4, 64});
  file.floats("a.weight_scale", DType::f16, {2, 4}, 0.01f);
  file.floats("a.weight_zero", DType::f16, {2, 4}, 0.01f);
  file.marker("a", awq_marker);
  const Opened opened(file);
  expect_clean(opened.check());
  EXPECT_NE(opened.layer().part("weight_zeros"), nullptr);
}

TEST(AwqW4A16, malformed_parts) {
  expect_finding(Opened(file_of({4, 128}, {4, 4}, {4, 5})).check(), ErrorCode::part_shape,
                 Severity::error, {"a.weight_zeros"});
  TestFile mixed;
  mixed.codes("a.weight", DType::i8, {4, 64});
  mixed.floats("a.weight_scale", DType::bf16, {2, 4}, 0.01f);
  mixed.floats("a.weight_zeros", DType::f16, {2, 4}, 0.01f);
  mixed.marker("a", awq_marker);
  expect_finding(Opened(mixed).check(), ErrorCode::part_dtype, Severity::error, {"F16", "BF16"});
  expect_finding(Opened(file_of({4, 128}, {4, 4}, {4, 4},
                                marker_text("awq_w4a16", "\"group_size\": 64, \"convrot\": true")))
                     .check(),
                 ErrorCode::dialect_rotation, Severity::error);
}

TEST(AwqW4A16, split_and_size) {
  const Opened opened(file_of({4, 128}, {4, 4}, {4, 4}));
  EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 64u);
  EXPECT_EQ(opened.layer().format->split(opened.layer()).why, "scale group 64");
  expect_size_matches(opened.layer());
  EXPECT_EQ(opened.layer().format->size(opened.layer(), 3, 128), 3u * 64 + 2 * 3 * 2 * 2);
}

TEST(AwqW4A16, deep_check) {
  const auto with = [](float scale, float zero, int code) {
    TestFile file;
    file.raw("a.weight", DType::i8, {1, 64}, bytes_of(64, code));
    file.values("a.weight_scale", DType::bf16, {2, 1}, {0.5f, scale});
    file.values("a.weight_zeros", DType::bf16, {2, 1}, {0.5f, zero});
    file.marker("a", awq_marker);
    return Opened(file).check(CheckDepth::data);
  };
  const float inf = std::numeric_limits<float>::infinity();
  expect_clean(with(0.5f, 0, 0x97));
  expect_clean(with(0, 0, 0x88));  // nothing but zeros of the group: nothing is lost
  expect_finding(with(0, 0, 0x97), ErrorCode::data_zero_scale, Severity::error, {"index 1"});
  expect_finding(with(-1, 0, 0x97), ErrorCode::data_zero_scale, Severity::error, {"negative"});
  expect_finding(with(inf, 0, 0x97), ErrorCode::data_not_finite, Severity::error,
                 {"a.weight_scale"});
  expect_finding(with(1, -inf, 0x97), ErrorCode::data_not_finite, Severity::error,
                 {"a.weight_zeros"});
}

}  // namespace
}  // namespace parfait::formats
