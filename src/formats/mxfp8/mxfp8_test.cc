#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/floats.h"
#include "formats/common.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

constexpr std::string_view mxfp8_marker = R"({"format": "mxfp8"})";

TestFile file_of(std::uint64_t rows, std::uint64_t columns, const Shape& scale,
                 std::string_view marker = mxfp8_marker, DType scale_dtype = DType::f8_e8m0) {
  TestFile file;
  file.codes("a.weight", DType::f8_e4m3, {rows, columns});
  file.codes("a.weight_scale", scale_dtype, scale);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

TEST(Mxfp8, the_specifications_block) {
  const float source[] = {0.1f,  -0.2f, 0.3f,   -0.4f, 0.5f,  -0.6f, 0.7f,  -0.8f,
                          0.05f, 0,     -0.05f, 0.9f,  -1.0f, 1.2f,  -1.4f, 1.6f};
  std::vector<std::byte> codes = byte_list({0x5d, 0xe5, 0x6a, 0xed, 0x70, 0xf2, 0x73, 0xf5, 0x55,
                                            0x00, 0xd5, 0x76, 0xf8, 0x7a, 0xfb, 0x7d});
  codes.resize(32);
  for (DType dtype : {DType::u8, DType::f8_e8m0}) {
    std::vector<std::byte> scales(512);
    scales[0] = std::byte{119};
    TestFile file;
    file.raw("a.weight", DType::f8_e4m3, {1, 32}, codes);
    file.raw("a.weight_scale", dtype, {128, 4}, scales);
    file.marker("a", mxfp8_marker);
    const Opened opened(file);
    expect_clean(opened.check(CheckDepth::data));
    const std::vector<float> got = opened.decode();
    for (std::size_t k = 0; k < 16; ++k) {
      EXPECT_NEAR(got[k], source[k], std::fabs(source[k]) / 16) << k;
      EXPECT_EQ(got[k], e4m3_to_float(std::to_integer<std::uint8_t>(codes[k])) / 256);
    }
  }
}

TEST(Mxfp8, block_scales_are_found_where_the_tiles_put_them) {
  const std::uint64_t rows = 140, columns = 192;
  const BlockScales layout{rows, columns / 32};
  std::vector<std::byte> scales(layout.stored_bytes());
  const auto code = [](std::uint64_t row, std::uint64_t block) {
    return static_cast<std::uint8_t>((row * 5 + block * 11) % 255);
  };
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t block = 0; block < columns / 32; ++block)
      scales[layout.offset(row, block)] = static_cast<std::byte>(code(row, block));
  TestFile file;
  file.raw("a.weight", DType::f8_e4m3, {rows, columns}, bytes_of(rows * columns, 0x38));
  file.raw("a.weight_scale", DType::f8_e8m0, {256, 8}, scales);
  file.marker("a", mxfp8_marker);
  const std::vector<float> got = Opened(file).decode();
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t k = 0; k < columns; ++k)
      ASSERT_EQ(got[row * columns + k], e8m0_to_float(code(row, k / 32))) << row << ", " << k;
}

TEST(Mxfp8, claims) {
  for (DType dtype : {DType::u8, DType::f8_e8m0}) {
    const Opened opened(file_of(32, 256, {128, 8}, "", dtype));
    EXPECT_EQ(opened.layer().format->name, "mxfp8");
    EXPECT_EQ(opened.layer().scale_group, 32u);
    expect_sound(opened.check());
  }
  // Logical shape: mine, but of another dialect.
  expect_finding(Opened(file_of(32, 256, {32, 8}, "")).check(), ErrorCode::dialect_block_scale,
                 Severity::error, {"linear"});
  EXPECT_TRUE(Opened(file_of(32, 256, {7, 7}, "")).checkpoint().layers.empty());
}

TEST(Mxfp8, block_scales_of_other_shapes) {
  const auto same = Opened(file_of(128, 128, {128, 4})).check();
  expect_finding(same, ErrorCode::dialect_block_scale, Severity::warning);
  expect_sound(same);
  expect_finding(Opened(file_of(32, 256, {32, 7})).check(), ErrorCode::part_shape, Severity::error,
                 {"[128, 8]"});
  expect_finding(Opened(file_of(32, 48, {128, 4})).check(), ErrorCode::layer_columns,
                 Severity::error, {"K = 48", "32"});
  TestFile dtype;
  dtype.codes("a.weight", DType::f8_e4m3, {32, 256});
  dtype.floats("a.weight_scale", DType::f32, {128, 8}, 1);
  dtype.marker("a", mxfp8_marker);
  expect_finding(Opened(dtype).check(), ErrorCode::part_dtype, Severity::error, {"F32", "F8_E8M0"});
}

TEST(Mxfp8, other_parts) {
  TestFile noted = file_of(32, 256, {128, 8});
  noted.floats("a.input_scale", DType::f32, {}, 1);
  expect_finding(Opened(noted).check(), ErrorCode::part_ignored, Severity::note, {"input_scale"});
  expect_finding(
      Opened(file_of(32, 256, {128, 8},
                     marker_text("mxfp8", "\"convrot\": true, \"convrot_groupsize\": 256")))
          .check(),
      ErrorCode::dialect_rotation, Severity::error);
}

TEST(Mxfp8, a_short_bias_gives_the_outputs_of_padded_rows) {
  TestFile file = file_of(32, 256, {128, 8});
  file.floats("a.bias", DType::bf16, {3}, 0.5f);
  const Opened opened(file);
  EXPECT_EQ(opened.layer().rows, 3u);
  expect_clean(opened.check());
  expect_size_matches(opened.layer());
}

TEST(Mxfp8, split_and_size) {
  const Opened opened(file_of(32, 256, {128, 8}));
  EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 128u);
  expect_size_matches(opened.layer());
  EXPECT_EQ(opened.layer().format->size(opened.layer(), 200, 128), 200u * 128 + 1024);
}

TEST(Mxfp8, deep_check) {
  const auto with_scale = [](int code, int weight) {
    std::vector<std::byte> scales = bytes_of(128 * 4, 120), codes = bytes_of(16 * 64, 0x30);
    scales[16] = static_cast<std::byte>(code);  // row 1, block 0
    for (std::size_t k = 64; k < 96; ++k) codes[k] = static_cast<std::byte>(weight);
    TestFile file;
    file.raw("a.weight", DType::f8_e4m3, {16, 64}, codes);
    file.raw("a.weight_scale", DType::u8, {128, 4}, scales);
    file.marker("a", mxfp8_marker);
    return Opened(file).check(CheckDepth::data);
  };
  expect_clean(with_scale(120, 0x30));
  expect_clean(with_scale(0, 0));
  expect_clean(with_scale(0, 0x80));  // negative zeros
  const auto lost = with_scale(0, 0x30);
  expect_finding(lost, ErrorCode::data_zero_scale, Severity::warning, {"1, the first at index 2"});
  expect_sound(lost);
  expect_finding(with_scale(255, 0x30), ErrorCode::data_not_finite, Severity::error,
                 {"a.weight_scale"});
  expect_finding(with_scale(120, 0xff), ErrorCode::data_not_finite, Severity::error,
                 {"a.weight:", "32, the first at index 64"});
}

}  // namespace
}  // namespace parfait::formats
