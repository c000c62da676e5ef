#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/floats.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

constexpr std::string_view e4m3_marker = R"({"format": "float8_e4m3fn"})";
constexpr std::string_view e5m2_marker = R"({"format": "float8_e5m2"})";

std::vector<std::byte> all_codes() {
  std::vector<std::byte> codes;
  for (int code = 0; code < 256; ++code) codes.push_back(static_cast<std::byte>(code));
  return codes;
}

TestFile file_of(DType dtype, const Shape& scale, std::string_view marker) {
  TestFile file;
  file.codes("a.weight", dtype, {256, 256});
  file.floats("a.weight_scale", DType::f32, scale, 0.5f);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

TEST(Float8, every_code_by_the_scale) {
  for (const bool e5m2 : {false, true})
    for (const float scale : {0.0f, 0.3f}) {  // 0: no scale at all
      TestFile file;
      file.raw("a.weight", e5m2 ? DType::f8_e5m2 : DType::f8_e4m3, {1, 256}, all_codes());
      if (scale != 0) file.floats("a.weight_scale", DType::f32, {}, scale);
      file.marker("a", e5m2 ? e5m2_marker : e4m3_marker);
      const std::vector<float> got = Opened(file).decode();
      for (unsigned code = 0; code < 256; ++code) {
        const auto byte = static_cast<std::uint8_t>(code);
        const float value = e5m2 ? e5m2_to_float(byte) : e4m3_to_float(byte);
        const float expected = scale != 0 ? value * scale : value;
        EXPECT_TRUE(got[code] == expected || (std::isnan(got[code]) && std::isnan(expected)));
      }
    }
}

TEST(Float8, single_scales_of_any_rank) {
  for (const Shape& scale : {Shape{}, {1}, {1, 1}}) {
    const Opened opened(file_of(DType::f8_e4m3, scale, e4m3_marker));
    expect_clean(opened.check());
    expect_size_matches(opened.layer());
    EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 1u);
  }
}

TEST(Float8, scales_by_row_and_block_are_recognised) {
  for (const Shape& scale : {Shape{256}, {256, 1}})
    expect_finding(Opened(file_of(DType::f8_e4m3, scale, e4m3_marker)).check(),
                   ErrorCode::part_shape, Severity::error, {"row-wise", shape_text(scale)});
  for (const Shape& scale : {Shape{2, 2}, {256, 2, 1}, {4}})
    expect_finding(Opened(file_of(DType::f8_e4m3, scale, e4m3_marker)).check(),
                   ErrorCode::part_shape, Severity::error, {"block-wise", shape_text(scale)});
  expect_finding(Opened(file_of(DType::f8_e4m3, {0}, e4m3_marker)).check(), ErrorCode::part_shape,
                 Severity::error, {"empty"});
}

TEST(Float8, is_claimed_with_a_float_scale) {
  for (DType dtype : {DType::f8_e4m3, DType::f8_e5m2})
    for (const char* suffix : {"weight_scale", "scale_weight"}) {
      TestFile file;
      file.codes("a.weight", dtype, {16, 16});
      file.floats(std::string("a.") + suffix, DType::f32, {}, 0.5f);
      file.floats("a.scale_input", DType::f32, {}, 0.5f);
      const Opened opened(file);
      EXPECT_EQ(opened.layer().format->name,
                dtype == DType::f8_e4m3 ? "float8_e4m3fn" : "float8_e5m2");
      EXPECT_NE(opened.layer().part("weight_scale"), nullptr);
      EXPECT_NE(opened.layer().part("input_scale"), nullptr);
      expect_clean(opened.check());
      expect_size_matches(opened.layer());
    }
  const Opened rows(file_of(DType::f8_e4m3, {256, 1}, ""));
  expect_finding(rows.check(), ErrorCode::part_shape, Severity::error, {"row-wise"});
}

TEST(Float8, markers) {
  const Opened full(file_of(DType::f8_e5m2, {},
                            marker_text("float8_e5m2", "\"full_precision_matrix_mult\": true")));
  EXPECT_TRUE(full.layer().full_precision);
  expect_clean(full.check());
  TestFile rotated =
      file_of(DType::f8_e4m3, {},
              marker_text("float8_e4m3fn", "\"convrot\": true, \"convrot_groupsize\": 256"));
  expect_finding(Opened(rotated).check(), ErrorCode::dialect_rotation, Severity::error,
                 {"ComfyUI and SGLang ignore"});
  expect_sound(Opened(rotated, Compat::comfyui).check());
}

TEST(Float8, a_weight_of_bytes_says_that_tools_disagree) {
  TestFile file;
  file.codes("a.weight", DType::u8, {16, 16});
  file.floats("a.weight_scale", DType::f32, {}, 0.5f);
  file.marker("a", e4m3_marker);
  const auto findings = Opened(file).check();
  const Finding* finding = find_code(findings, ErrorCode::part_dtype);
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->severity, Severity::error);
  EXPECT_NE(finding->message.find("tools disagree"), std::string::npos) << finding->line();
}

TEST(Float8, embeddings) {
  TestFile file;
  file.codes("model.embed_tokens.weight", DType::f8_e4m3, {10, 4});
  file.floats("model.embed_tokens.weight_scale", DType::f32, {}, 0.5f);
  file.marker("model.embed_tokens", e4m3_marker);
  expect_clean(Opened(file).check());
}

TEST(Float8, deep_check) {
  TestFile nan;
  nan.raw("a.weight", DType::f8_e4m3, {1, 256}, all_codes());
  nan.floats("a.weight_scale", DType::f32, {}, 0.5f);
  nan.marker("a", e4m3_marker);
  expect_finding(Opened(nan).check(CheckDepth::data), ErrorCode::data_not_finite, Severity::error,
                 {"2, the first at index 127"});
  TestFile infinite;
  infinite.raw("a.weight", DType::f8_e5m2, {1, 256}, all_codes());
  infinite.floats("a.weight_scale", DType::f32, {}, 0.5f);
  infinite.marker("a", e5m2_marker);
  expect_finding(Opened(infinite).check(CheckDepth::data), ErrorCode::data_not_finite,
                 Severity::error, {"8, the first at index 124"});
  TestFile zero;
  zero.codes("a.weight", DType::f8_e4m3, {4, 4});
  zero.floats("a.weight_scale", DType::f32, {1}, 0);
  zero.marker("a", e4m3_marker);
  expect_finding(Opened(zero).check(CheckDepth::data), ErrorCode::data_zero_scale, Severity::error,
                 {"a.weight_scale"});
  TestFile input = file_of(DType::f8_e4m3, {}, e4m3_marker);
  input.floats("a.input_scale", DType::f32, {}, 0);
  expect_finding(Opened(input).check(CheckDepth::data), ErrorCode::data_zero_scale, Severity::error,
                 {"a.input_scale"});
}

}  // namespace
}  // namespace parfait::formats
