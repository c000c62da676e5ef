#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/hadamard.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

constexpr std::string_view plain_marker = R"({"format": "int8_tensorwise"})";

std::string rotated_marker(int group) {
  return marker_text("int8_tensorwise",
                     "\"convrot\": true, \"convrot_groupsize\": " + std::to_string(group));
}

TestFile file_of(const Shape& weight, const Shape& scale, std::string_view marker = plain_marker,
                 float value = 0.01f) {
  TestFile file;
  file.codes("a.weight", DType::i8, weight);
  file.floats("a.weight_scale", DType::f32, scale, value);
  file.marker("a", marker);
  return file;
}

TEST(Int8Tensorwise, the_specifications_rotated_row) {
  TestFile file;
  file.raw("a.weight", DType::i8, {1, 4}, byte_list({-10, 127, -68, -29}));
  file.values("a.weight_scale", DType::f32, {1, 1}, {0.025590552f});
  file.marker("a", rotated_marker(4));
  const std::vector<float> row = Opened(file).decode();
  const float source[] = {1, 2, -3, 0.5f};
  for (int k = 0; k < 4; ++k) EXPECT_NEAR(row[static_cast<std::size_t>(k)], source[k], 0.0256f);
  // Exactly: H4 of the codes by the scale.
  const double r[] = {-10 * 0.025590552, 127 * 0.025590552, -68 * 0.025590552, -29 * 0.025590552};
  const double h4[4][4] = {{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}};
  for (std::size_t k = 0; k < 4; ++k)
    EXPECT_NEAR(row[k], (h4[k][0] * r[0] + h4[k][1] * r[1] + h4[k][2] * r[2] + h4[k][3] * r[3]) / 2,
                1e-6);
}

TEST(Int8Tensorwise, every_code_by_scalar_and_row_scales) {
  std::vector<std::byte> codes;
  for (int row = 0; row < 2; ++row)
    for (int code = -128; code < 128; ++code) codes.push_back(static_cast<std::byte>(code));
  for (const bool by_row : {false, true}) {
    TestFile file;
    file.raw("a.weight", DType::i8, {2, 256}, codes);
    if (by_row) {
      file.values("a.weight_scale", DType::f32, {2, 1}, {0.3f, 0.7f});
    } else {
      file.values("a.weight_scale", DType::f32, {}, {0.3f});
    }
    file.marker("a", plain_marker);
    const Opened opened(file);
    expect_clean(opened.check(CheckDepth::data));  // -128 is a legal code
    const std::vector<float> got = opened.decode();
    for (int row = 0; row < 2; ++row)
      for (int code = -128; code < 128; ++code)
        EXPECT_EQ(got[static_cast<std::size_t>(row * 256 + code + 128)],
                  static_cast<float>(code) * (by_row && row == 1 ? 0.7f : 0.3f));
    EXPECT_EQ(opened.decode_rows("a", 1, 1), std::vector<float>(got.begin() + 256, got.end()));
  }
}

TEST(Int8Tensorwise, narrow_scales_are_widened) {
  for (DType dtype : {DType::bf16, DType::f16}) {
    TestFile file;
    file.raw("a.weight", DType::i8, {2, 2}, byte_list({1, 2, 3, 4}));
    file.values("a.weight_scale", dtype, {2}, {0.5f, 0.25f});
    file.marker("a", plain_marker);
    const Opened opened(file);
    expect_finding(opened.check(), ErrorCode::part_widened, Severity::warning);
    expect_sound(opened.check());
    EXPECT_EQ(opened.decode(), (std::vector<float>{0.5f, 1, 0.75f, 1}));
    expect_size_matches(opened.layer());
  }
}

TEST(Int8Tensorwise, markers_settle_the_rotation) {
  const Opened none(file_of({4, 256}, {4, 1}));
  EXPECT_EQ(none.layer().rotate_group, 0u);
  EXPECT_EQ(none.layer().scale_group, 0u);
  const Opened by_default(
      file_of({4, 256}, {4, 1}, marker_text("int8_tensorwise", "\"convrot\": true")));
  EXPECT_EQ(by_default.layer().rotate_group, 256u);
  expect_finding(by_default.check(), ErrorCode::marker_default, Severity::note, {"256"});
  const Opened off(
      file_of({4, 256}, {4, 1},
              marker_text("int8_tensorwise", "\"convrot\": false, \"convrot_groupsize\": 256")));
  EXPECT_EQ(off.layer().rotate_group, 0u);
  expect_clean(off.check());
  const Opened half(
      file_of({4, 256}, {4, 1}, marker_text("int8_tensorwise", "\"convrot_groupsize\": 64")));
  EXPECT_EQ(half.layer().rotate_group, 0u);
  expect_finding(half.check(), ErrorCode::marker_ignored, Severity::warning, {"convrot"});
  const Opened full(file_of(
      {4, 256}, {4, 1}, marker_text("int8_tensorwise", "\"full_precision_matrix_mult\": true")));
  EXPECT_TRUE(full.layer().full_precision);
}

TEST(Int8Tensorwise, is_never_claimed_without_a_declaration) {
  TestFile file;
  file.codes("a.weight", DType::i8, {4, 256});
  file.floats("a.weight_scale", DType::f32, {4, 1}, 0.01f);
  const Opened opened(file);
  EXPECT_TRUE(opened.checkpoint().layers.empty());
  expect_finding(opened.check(), ErrorCode::dialect_undeclared_rotation, Severity::error);
}

TEST(Int8Tensorwise, convolutions_are_decoded) {
  for (const Shape& scale : {Shape{8, 1, 1, 1}, {8}, {}}) {
    const Opened opened(file_of({8, 4, 3, 3}, scale));
    EXPECT_EQ(opened.layer().kind, LayerKind::convolution);
    EXPECT_EQ(opened.layer().rows, 8u);
    EXPECT_EQ(opened.layer().columns, 36u);
    expect_clean(opened.check());
    expect_size_matches(opened.layer());
    EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 0u);
    EXPECT_EQ(opened.decode().size(), 288u);
  }
  expect_finding(Opened(file_of({8, 4, 2, 2}, {8, 1, 1, 1}, rotated_marker(16))).check(),
                 ErrorCode::layer_kind, Severity::error, {"rotated convolution"});
}

TEST(Int8Tensorwise, experts_are_flattened) {
  const auto marker = marker_text("int8_tensorwise", "\"num_experts\": 3");
  for (const Shape& scale : {Shape{3, 4, 1}, {3, 4}, {12}, {12, 1}, {}}) {
    const Opened opened(file_of({3, 4, 16}, scale, marker));
    EXPECT_EQ(opened.layer().kind, LayerKind::experts);
    EXPECT_EQ(opened.layer().experts, 3u);
    EXPECT_EQ(opened.layer().rows, 12u);
    EXPECT_EQ(opened.layer().columns, 16u);
    expect_clean(opened.check());
    expect_size_matches(opened.layer());
  }
  expect_finding(Opened(file_of({3, 4, 16}, {3}, marker)).check(), ErrorCode::part_shape,
                 Severity::error);
  expect_finding(
      Opened(file_of({3, 4, 16}, {3, 4, 1}, marker_text("int8_tensorwise", "\"num_experts\": 4")))
          .check(),
      ErrorCode::marker_key, Severity::error, {"4", "3"});
  TestFile biased = file_of({3, 4, 16}, {}, marker);
  biased.floats("a.bias", DType::f32, {3, 4}, 0);
  expect_clean(Opened(biased).check());
}

TEST(Int8Tensorwise, wrong_parts) {
  TestFile wrong;
  wrong.codes("a.weight", DType::u8, {4, 16});
  wrong.floats("a.weight_scale", DType::f32, {}, 1);
  wrong.marker("a", plain_marker);
  expect_finding(Opened(wrong).check(), ErrorCode::part_dtype, Severity::error, {"U8", "I8"});
  TestFile missing;
  missing.codes("a.weight", DType::i8, {4, 16});
  missing.marker("a", plain_marker);
  expect_finding(Opened(missing).check(), ErrorCode::part_missing, Severity::error,
                 {"a.weight_scale"});
}

TEST(Int8Tensorwise, split_and_size) {
  const Opened plain(file_of({4, 512}, {4, 1})),
      rotated(file_of({4, 512}, {4, 1}, rotated_marker(64)));
  const SplitRule any = plain.layer().format->split(plain.layer());
  EXPECT_EQ(any.rows, 1u);
  EXPECT_EQ(any.columns, 1u);
  const SplitRule grouped = rotated.layer().format->split(rotated.layer());
  EXPECT_EQ(grouped.columns, 64u);
  EXPECT_EQ(grouped.why, "ConvRot group 64");
  expect_size_matches(rotated.layer());
  EXPECT_EQ(rotated.layer().format->size(rotated.layer(), 2, 256), 2u * 256 + 8);
  const Opened scalar(file_of({4, 512}, {1}));
  EXPECT_EQ(scalar.layer().format->size(scalar.layer(), 2, 256), 2u * 256 + 4);
}

TEST(Int8Tensorwise, deep_check_of_scales_and_codes) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const struct {
    float scale;
    ErrorCode code;
  } cases[] = {{nan, ErrorCode::data_not_finite},
               {std::numeric_limits<float>::infinity(), ErrorCode::data_not_finite},
               {-0.5f, ErrorCode::data_zero_scale},
               {0, ErrorCode::data_zero_scale}};
  for (const auto& c : cases) {
    TestFile file;
    file.codes("a.weight", DType::i8, {4, 16});
    file.values("a.weight_scale", DType::f32, {4, 1}, {1, 1, c.scale, c.scale});
    file.marker("a", plain_marker);
    expect_finding(Opened(file).check(CheckDepth::data), c.code, Severity::error,
                   {"a.weight_scale", "2, the first at index 2"});
    expect_clean(Opened(file).check());
  }
  TestFile zero;  // a zero row under a zero scale loses nothing; a tensor of nothing else is odd
  zero.raw("a.weight", DType::i8, {4, 16}, bytes_of(64, 0));
  zero.floats("a.weight_scale", DType::f32, {}, 0);
  zero.marker("a", plain_marker);
  const auto findings = Opened(zero).check(CheckDepth::data);
  expect_finding(findings, ErrorCode::data_all_zero, Severity::warning, {"64 bytes"});
  expect_sound(findings);
  TestFile bias = file_of({4, 16}, {});
  bias.values("a.bias", DType::f16, {4}, {0, nan, 0, 0});
  expect_finding(Opened(bias).check(CheckDepth::data), ErrorCode::data_not_finite, Severity::error,
                 {"a.bias", "index 1"});
}

TEST(Int8Tensorwise, flat_codes_of_a_rotated_weight_are_implausible) {
  std::vector<std::byte> flat(64 * 256);
  for (std::size_t i = 0; i < flat.size(); ++i)
    flat[i] = static_cast<std::byte>(i * 2654435761u >> 13);
  for (const bool rotated : {false, true}) {
    TestFile file;
    file.raw("a.weight", DType::i8, {64, 256}, flat);
    file.floats("a.weight_scale", DType::f32, {64, 1}, 0.01f);
    file.marker("a", rotated ? rotated_marker(256) : std::string(plain_marker));
    const auto findings = Opened(file).check(CheckDepth::data);
    if (rotated) {
      expect_finding(findings, ErrorCode::data_implausible, Severity::warning, {"a.weight"});
    } else {
      expect_clean(findings);
    }
  }
  expect_clean(Opened(file_of({64, 256}, {64, 1}, rotated_marker(256))).check(CheckDepth::data));
}

}  // namespace
}  // namespace parfait::formats
