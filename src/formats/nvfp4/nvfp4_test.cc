#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/floats.h"
#include "formats/common.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

constexpr std::string_view nvfp4_marker = R"({"format": "nvfp4"})";

Shape padded(std::uint64_t rows, std::uint64_t columns) {
  return {round_up(rows, 128), round_up(columns / 16, 4)};
}

TestFile file_of(std::uint64_t rows, std::uint64_t columns, const Shape& scale,
                 std::string_view marker = nvfp4_marker) {
  TestFile file;
  file.codes("a.weight", DType::u8, {rows, columns / 2});
  file.codes("a.weight_scale", DType::f8_e4m3, scale);
  file.floats("a.weight_scale_2", DType::f32, {}, 0.001f);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

TEST(Nvfp4, the_specifications_bytes) {
  // .5, -6, 1.5, 2, -.5, 3, 0, 4 under a block scale of 1, then zeros.
  std::vector<std::byte> codes = byte_list({0x1f, 0x34, 0x95, 0x06});
  codes.resize(8);
  std::vector<std::byte> scales(512);
  scales[0] = std::byte{0x38};
  TestFile file;
  file.raw("a.weight", DType::u8, {1, 8}, codes);
  file.raw("a.weight_scale", DType::f8_e4m3, {128, 4}, scales);
  file.floats("a.weight_scale_2", DType::f32, {}, 0.5f);
  file.marker("a", nvfp4_marker);
  const Opened opened(file);
  expect_clean(opened.check(CheckDepth::data));
  const std::vector<float> expected = {0.25f, -3, 0.75f, 1, -0.25f, 1.5f, 0, 2,
                                       0,     0,  0,     0, 0,      0,    0, 0};
  EXPECT_EQ(opened.decode(), expected);
}

TEST(Nvfp4, the_specifications_block) {
  const float source[] = {0.1f,  -0.2f, 0.3f,   -0.4f, 0.5f,  -0.6f, 0.7f,  -0.8f,
                          0.05f, 0,     -0.05f, 0.9f,  -1.0f, 1.2f,  -1.4f, 1.6f};
  std::vector<std::byte> scales(512);
  scales[0] = std::byte{0x7e};
  TestFile file;
  file.raw("a.weight", DType::u8, {1, 8},
           byte_list({0x1a, 0x2b, 0x4c, 0x5d, 0x00, 0x85, 0xe6, 0xf7}));
  file.raw("a.weight_scale", DType::f8_e4m3, {128, 4}, scales);
  file.floats("a.weight_scale_2", DType::f32, {}, 1.6f / 2688);
  file.marker("a", nvfp4_marker);
  const std::vector<float> got = Opened(file).decode();
  for (std::size_t k = 0; k < 16; ++k) EXPECT_NEAR(got[k], source[k], 0.26667f) << k;
  EXPECT_FLOAT_EQ(got[15], 1.6f);
}

TEST(Nvfp4, block_scales_are_found_where_the_tiles_put_them) {
  // Each scale is a power of two that names its row and block; every code is 1.0.
  const std::uint64_t rows = 200, columns = 96;
  const BlockScales layout{rows, columns / 16};
  std::vector<std::byte> scales(layout.stored_bytes());
  const auto code = [](std::uint64_t row, std::uint64_t block) {
    return static_cast<std::uint8_t>((row * 7 + block * 3) % 0x7f);
  };
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t block = 0; block < columns / 16; ++block)
      scales[layout.offset(row, block)] = static_cast<std::byte>(code(row, block));
  TestFile file;
  file.raw("a.weight", DType::u8, {rows, columns / 2}, bytes_of(rows * columns / 2, 0x22));
  file.raw("a.weight_scale", DType::u8, {256, 8}, scales);  // the same bytes as U8
  file.floats("a.weight_scale_2", DType::f32, {1}, 1);
  file.marker("a", nvfp4_marker);
  const Opened opened(file);
  expect_clean(opened.check(CheckDepth::data));
  const std::vector<float> got = opened.decode();
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t k = 0; k < columns; ++k)
      ASSERT_EQ(got[row * columns + k], e4m3_to_float(code(row, k / 16))) << row << ", " << k;
}

TEST(Nvfp4, pre_quant_scale_is_the_inputs_and_leaves_the_weight_alone) {
  TestFile with = file_of(16, 256, padded(16, 256)), without = file_of(16, 256, padded(16, 256));
  with.floats("a.pre_quant_scale", DType::bf16, {256}, 2);
  EXPECT_EQ(Opened(with).decode(), Opened(without).decode());
  expect_clean(Opened(with).check());
  expect_size_matches(Opened(with).layer());
  TestFile wrong = file_of(16, 256, padded(16, 256));
  wrong.floats("a.pre_quant_scale", DType::bf16, {16}, 2);
  expect_finding(Opened(wrong).check(), ErrorCode::part_shape, Severity::error,
                 {"pre_quant_scale", "[256]"});
}

TEST(Nvfp4, linear_block_scales) {
  // Shapes that differ prove it; shapes that agree are a warning; other counts are no dialect.
  expect_finding(Opened(file_of(16, 256, {16, 16})).check(), ErrorCode::dialect_block_scale,
                 Severity::error, {"linear", "ModelOpt", "[128, 16]"});
  const auto same = Opened(file_of(128, 256, {128, 16})).check();
  expect_finding(same, ErrorCode::dialect_block_scale, Severity::warning, {"ComfyUI"});
  expect_sound(same);
  for (const Shape& scale : {Shape{128, 15}, {128, 4}, {256, 16}, {1}})
    expect_finding(Opened(file_of(16, 256, scale)).check(), ErrorCode::part_shape, Severity::error,
                   {"a.weight_scale", "[128, 16]"});
  expect_clean(Opened(file_of(16, 256, {2048})).check());  // flat, but of the right number
}

TEST(Nvfp4, claims) {
  const Opened opened(file_of(16, 256, padded(16, 256), ""));
  EXPECT_EQ(opened.layer().format->name, "nvfp4");
  EXPECT_EQ(opened.layer().scale_group, 16u);
  TestFile no_second;
  no_second.codes("a.weight", DType::u8, {16, 128});
  no_second.codes("a.weight_scale", DType::f8_e4m3, {128, 16});
  EXPECT_TRUE(Opened(no_second).checkpoint().layers.empty());
}

TEST(Nvfp4, malformed_parts) {
  expect_finding(Opened(file_of(16, 40, {128, 4})).check(), ErrorCode::layer_columns,
                 Severity::error, {"K = 40", "16"});
  TestFile second;
  second.codes("a.weight", DType::u8, {16, 128});
  second.codes("a.weight_scale", DType::f8_e4m3, {128, 16});
  second.floats("a.weight_scale_2", DType::f32, {16}, 1);
  second.marker("a", nvfp4_marker);
  expect_finding(Opened(second).check(), ErrorCode::part_shape, Severity::error,
                 {"a.weight_scale_2", "one value"});
  TestFile missing;
  missing.codes("a.weight", DType::u8, {16, 128});
  missing.codes("a.weight_scale", DType::f8_e4m3, {128, 16});
  missing.marker("a", nvfp4_marker);
  expect_finding(Opened(missing).check(), ErrorCode::part_missing, Severity::error,
                 {"a.weight_scale_2"});
  TestFile experts;
  experts.codes("a.weight", DType::u8, {2, 16, 128});
  experts.codes("a.weight_scale", DType::f8_e4m3, {2, 128, 16});
  experts.floats("a.weight_scale_2", DType::f32, {2}, 1);
  experts.marker("a", nvfp4_marker);
  expect_finding(Opened(experts).check(), ErrorCode::layer_kind, Severity::error);
}

TEST(Nvfp4, a_rotation_flag_is_refused) {
  const TestFile file =
      file_of(16, 256, padded(16, 256),
              marker_text("nvfp4", "\"convrot\": true, \"convrot_groupsize\": 256"));
  expect_finding(Opened(file).check(), ErrorCode::dialect_rotation, Severity::error,
                 {"ComfyUI and SGLang ignore", "other tools rotate"});
}

TEST(Nvfp4, a_short_bias_gives_the_outputs_of_padded_rows) {
  TestFile file = file_of(16, 256, padded(16, 256));
  file.floats("a.bias", DType::bf16, {5}, 0.5f);
  const Opened opened(file);
  EXPECT_EQ(opened.layer().rows, 5u);
  const auto findings = opened.check();
  expect_finding(findings, ErrorCode::part_shape, Severity::note, {"16", "5"});
  expect_clean(findings);
  expect_size_matches(opened.layer());
  EXPECT_EQ(opened.decode().size(), 5u * 256);
  TestFile short_by_more = file_of(32, 256, padded(32, 256));
  short_by_more.floats("a.bias", DType::bf16, {16}, 0.5f);
  expect_finding(Opened(short_by_more).check(), ErrorCode::part_shape, Severity::error,
                 {"a.bias", "[16]", "[32]"});
}

TEST(Nvfp4, split_and_size) {
  const Opened opened(file_of(16, 256, padded(16, 256)));
  const SplitRule rule = opened.layer().format->split(opened.layer());
  EXPECT_EQ(rule.rows, 1u);
  EXPECT_EQ(rule.columns, 64u);
  expect_size_matches(opened.layer());
  EXPECT_EQ(opened.layer().format->size(opened.layer(), 16, 64), 16u * 32 + 512 + 4);
}

TEST(Nvfp4, deep_check) {
  const auto with_scale = [](int code, float second) {
    std::vector<std::byte> scales = bytes_of(128 * 4, 0x38);
    scales[17] = static_cast<std::byte>(code);
    TestFile file;
    file.codes("a.weight", DType::u8, {16, 32});
    file.raw("a.weight_scale", DType::f8_e4m3, {128, 4}, scales);
    file.floats("a.weight_scale_2", DType::f32, {}, second);
    file.marker("a", nvfp4_marker);
    return Opened(file).check(CheckDepth::data);
  };
  expect_clean(with_scale(0x38, 1));
  expect_clean(with_scale(0, 1));  // a block too small for its scale
  expect_finding(with_scale(0x7f, 1), ErrorCode::data_not_finite, Severity::error,
                 {"a.weight_scale", "index 17"});
  expect_finding(with_scale(0xb8, 1), ErrorCode::data_zero_scale, Severity::error,
                 {"a.weight_scale", "negative"});
  expect_finding(with_scale(0x38, 0), ErrorCode::data_zero_scale, Severity::error,
                 {"a.weight_scale_2"});
  expect_finding(with_scale(0x38, std::numeric_limits<float>::infinity()),
                 ErrorCode::data_not_finite, Severity::error, {"a.weight_scale_2"});
}

}  // namespace
}  // namespace parfait::formats
