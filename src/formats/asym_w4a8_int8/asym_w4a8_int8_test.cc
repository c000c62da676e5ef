#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/hadamard.h"
#include "formats/common.h"
#include "formats/format_testing.h"

namespace parfait::formats {
namespace {

using namespace testing;

const std::vector<float> fixed_codebook = {
    -0.980602f, -0.794529f, -0.638165f, -0.500986f, -0.377321f, -0.263187f, -0.155210f, -0.050720f,
    0.052541f,  0.156985f,  0.265284f,  0.379533f,  0.502636f,  0.638953f,  0.794876f,  0.980671f};

std::string marker_with(std::string_view more) { return marker_text("asym_w4a8_int8", more); }
const std::string g16_marker = marker_with("\"group_size\": 16, \"convrot_groupsize\": 256");

TestFile file_of(std::uint64_t rows, std::uint64_t columns, const Shape& s_rel,
                 std::string_view marker = g16_marker) {
  TestFile file;
  file.codes("a.weight", DType::i8, {rows, columns / 2});
  file.codes("a.weight_s_rel", DType::f8_e4m3, s_rel);
  file.floats("a.weight_s_channel", DType::f32, {rows}, 0.01f);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

// The int8 weights of one row: decoded, rotated again, divided by the channel's scale.
std::vector<float> int8_row(const Opened& opened, std::uint64_t group, float s_channel) {
  std::vector<float> row = opened.decode();
  rotate_groups(row, group);
  for (float& value : row) value = std::nearbyint(value / s_channel);
  return row;
}

TEST(AsymW4A8, the_specifications_bytes_and_levels) {
  // Codes 0, 1, 2, 15, 8, 7, 9, 14, then all sixteen in order.
  std::vector<std::byte> codes = byte_list({0x10, 0xf2, 0x78, 0xe9, 0, 0, 0, 0});
  for (int code = 0; code < 16; code += 2)
    codes.push_back(static_cast<std::byte>(code | (code + 1) << 4));
  const int coarse[] = {-63, -51, -41, -32, -24, -17, -10, -3, 3, 10, 17, 24, 32, 41, 51, 63};
  const int fine[] = {-1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1};
  for (const bool as_bytes : {false, true}) {
    for (const bool is_coarse : {false, true}) {
      TestFile file;
      file.raw("a.weight", DType::i8, {1, 16}, codes);
      file.raw("a.weight_s_rel", as_bytes ? DType::u8 : DType::f8_e4m3, {1, 2},
               bytes_of(2, is_coarse ? 0x68 : 0x38));
      file.floats("a.weight_s_channel", DType::f32, {1}, 0.25f);
      file.values("a.weight_codebook", DType::f32, {16}, fixed_codebook);
      file.marker("a", marker_with("\"group_size\": 16, \"convrot_groupsize\": 16"));
      const Opened opened(file);
      expect_clean(opened.check(CheckDepth::data));
      const std::vector<float> row = int8_row(opened, 16, 0.25f);
      const int* levels = is_coarse ? coarse : fine;
      const int first[] = {0, 1, 2, 15, 8, 7, 9, 14};
      for (std::size_t k = 0; k < 8; ++k) EXPECT_EQ(row[k], levels[first[k]]) << k;
      for (std::size_t k = 16; k < 32; ++k) EXPECT_EQ(row[k], levels[k - 16]) << k;
    }
  }
}

TEST(AsymW4A8, uniform_levels_without_a_codebook) {
  std::vector<std::byte> codes;
  for (int code = 0; code < 16; code += 2)
    codes.push_back(static_cast<std::byte>(code | (code + 1) << 4));
  TestFile file;
  file.raw("a.weight", DType::i8, {1, 8}, codes);
  file.values("a.weight_s_rel", DType::f32, {1, 1}, {10.5f});
  file.floats("a.weight_s_channel", DType::f32, {1}, 0.5f);
  file.marker("a", marker_with("\"group_size\": 16, \"convrot_groupsize\": 4"));
  const Opened opened(file);
  expect_clean(opened.check());
  const std::vector<float> row = int8_row(opened, 4, 0.5f);
  for (int c = 0; c < 16; ++c)
    EXPECT_EQ(row[static_cast<std::size_t>(c)], std::nearbyint(static_cast<float>(c - 8) * 10.5f));
}

TEST(AsymW4A8, a_correction_is_added_and_reported) {
  TestFile file;
  file.raw("a.weight", DType::i8, {2, 8}, bytes_of(16, 0x88));  // every level is 0
  file.values("a.weight_s_rel", DType::f32, {2, 2}, {1, 1, 1, 1});
  file.floats("a.weight_s_channel", DType::f32, {2}, 0.5f);
  file.values("a.weight_correction", DType::bf16, {2, 2}, {1, 2, 4, 8});  // by group, then row
  file.marker("a", marker_with("\"group_size\": 8, \"convrot_groupsize\": 4"));
  const Opened opened(file);
  const auto findings = opened.check();
  expect_finding(findings, ErrorCode::dialect_correction, Severity::warning, {"ComfyUI"});
  expect_sound(findings);
  expect_size_matches(opened.layer());
  // Constants are fixed points of the rotation.
  EXPECT_EQ(opened.decode(), (std::vector<float>{1, 1, 1, 1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 4, 4,
                                                 2, 2, 2, 2, 2, 2, 2, 2, 8, 8, 8, 8, 8, 8, 8, 8}));
  TestFile wrong = file_of(4, 256, {4, 16});
  wrong.floats("a.weight_correction", DType::f32, {4, 16}, 1);
  expect_finding(Opened(wrong).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_correction", "[16, 4]"});
}

TEST(AsymW4A8, markers) {
  const Opened opened(file_of(4, 256, {4, 16}));
  expect_clean(opened.check());
  EXPECT_EQ(opened.layer().rotate_group, 256u);
  EXPECT_EQ(opened.layer().scale_group, 16u);
  const Opened by_default(file_of(4, 256, {4, 16}, marker_with("")));
  EXPECT_EQ(by_default.layer().rotate_group, 256u);
  EXPECT_EQ(by_default.layer().scale_group, 16u);
  expect_clean(by_default.check());
  EXPECT_EQ(std::ranges::count(by_default.check(), ErrorCode::marker_default, &Finding::code), 2);
  expect_clean(Opened(file_of(4, 256, {4, 16},
                              marker_with("\"group_size\": 16, \"convrot\": true, "
                                          "\"convrot_groupsize\": 64")))
                   .check());
  expect_finding(Opened(file_of(4, 256, {4, 16},
                                marker_with("\"group_size\": 16, \"convrot\": false, "
                                            "\"convrot_groupsize\": 256")))
                     .check(),
                 ErrorCode::marker_key, Severity::error, {"convrot false"});
  // The marker's group contradicts the scales.
  expect_finding(Opened(file_of(4, 256, {4, 8})).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_s_rel", "[4, 8]", "[4, 16]"});
}

TEST(AsymW4A8, scale_groups) {
  for (const int group : {4, 8, 16, 32, 64}) {
    const auto marker =
        marker_with("\"group_size\": " + std::to_string(group) + ", \"convrot_groupsize\": 64");
    expect_clean(
        Opened(file_of(4, 192, {4, 192 / static_cast<std::uint64_t>(group)}, marker)).check());
  }
  for (const int group : {1, 2, 3, 12, 24, 40})
    expect_finding(Opened(file_of(4, 256, {4, 16},
                                  marker_with("\"convrot_groupsize\": 64, \"group_size\": " +
                                              std::to_string(group))))
                       .check(),
                   ErrorCode::layer_group, Severity::error, {"K = 256", std::to_string(group)});
  expect_finding(
      Opened(file_of(4, 192, {4, 1}, marker_with("\"group_size\": 128, \"convrot_groupsize\": 64")))
          .check(),
      ErrorCode::layer_columns, Severity::error, {"K = 192", "128"});
}

TEST(AsymW4A8, claims) {
  const Opened proven(file_of(4, 256, {4, 16}, ""));
  EXPECT_EQ(proven.layer().format->name, "asym_w4a8_int8");
  EXPECT_EQ(proven.layer().scale_group, 16u);
  expect_finding(proven.check(), ErrorCode::format_inferred, Severity::note);
  // Half a row of bytes in 48-groups of 4 bits is as wide as in 32-groups of 6 bits.
  const Opened ambiguous(file_of(4, 768, {4, 16}, ""));
  EXPECT_TRUE(ambiguous.checkpoint().layers.empty());
  TestFile book = file_of(4, 768, {4, 16}, "");
  book.values("a.weight_codebook", DType::f32, {16}, fixed_codebook);
  EXPECT_EQ(Opened(book).layer().format->name, "asym_w4a8_int8");
}

TEST(AsymW4A8, malformed_parts) {
  expect_finding(
      Opened(file_of(4, 264, {4, 33}, marker_with("\"group_size\": 8, \"convrot_groupsize\": 4")))
          .check(),
      ErrorCode::layer_columns, Severity::error, {"K = 264", "16"});
  TestFile channel;
  channel.codes("a.weight", DType::i8, {4, 128});
  channel.codes("a.weight_s_rel", DType::f8_e4m3, {4, 16});
  channel.floats("a.weight_s_channel", DType::f32, {1}, 0.01f);
  channel.marker("a", g16_marker);
  expect_finding(Opened(channel).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_s_channel", "[4]"});
  TestFile book = file_of(4, 256, {4, 16});
  book.floats("a.weight_codebook", DType::f32, {15}, 1);
  expect_finding(Opened(book).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_codebook", "[16]"});
}

TEST(AsymW4A8, experts) {
  TestFile file;
  file.codes("a.weight", DType::i8, {2, 3, 128});
  file.codes("a.weight_s_rel", DType::f8_e4m3, {2, 3, 16});
  file.floats("a.weight_s_channel", DType::f32, {2, 3}, 0.01f);
  file.marker("a", marker_with("\"group_size\": 16, \"convrot_groupsize\": 256, "
                               "\"num_experts\": 2"));
  const Opened opened(file);
  expect_clean(opened.check());
  EXPECT_EQ(opened.layer().rows, 6u);
  EXPECT_EQ(opened.layer().experts, 2u);
  expect_size_matches(opened.layer());
  EXPECT_EQ(opened.layer().format->split(opened.layer()).columns, 0u);
  EXPECT_EQ(opened.decode().size(), 6u * 256);
}

TEST(AsymW4A8, split_and_size) {
  const auto rule = [](int group, int rotate, std::uint64_t columns) {
    const auto marker = marker_with("\"group_size\": " + std::to_string(group) +
                                    ", \"convrot_groupsize\": " + std::to_string(rotate));
    const Opened opened(
        file_of(4, columns, {4, columns / static_cast<std::uint64_t>(group)}, marker));
    expect_size_matches(opened.layer());
    return opened.layer().format->split(opened.layer());
  };
  EXPECT_EQ(rule(16, 256, 1024).columns, 256u);
  EXPECT_EQ(rule(8, 4, 1024).columns, 16u);
  EXPECT_EQ(rule(48, 64, 768).columns, 192u);
  EXPECT_EQ(rule(16, 256, 1024).why, "ConvRot group 256, scale group 16, pack 16");
}

TEST(AsymW4A8, deep_check) {
  const auto with = [](int s_rel, float s_channel) {
    TestFile file;
    file.codes("a.weight", DType::i8, {2, 128});
    std::vector<std::byte> scales = bytes_of(32, 0x50);
    scales[20] = static_cast<std::byte>(s_rel);
    file.raw("a.weight_s_rel", DType::f8_e4m3, {2, 16}, scales);
    file.values("a.weight_s_channel", DType::f32, {2}, {0.01f, s_channel});
    file.marker("a", g16_marker);
    return Opened(file).check(CheckDepth::data);
  };
  expect_clean(with(0x50, 0.01f));
  expect_clean(with(0, 0.01f));  // a tiny group
  expect_finding(with(0x7f, 0.01f), ErrorCode::data_not_finite, Severity::error,
                 {"weight_s_rel", "index 20"});
  expect_finding(with(0xd0, 0.01f), ErrorCode::data_zero_scale, Severity::error,
                 {"weight_s_rel", "negative"});
  expect_finding(with(0x50, 0), ErrorCode::data_zero_scale, Severity::error,
                 {"weight_s_channel", "index 1"});
  expect_finding(with(0x50, std::numeric_limits<float>::quiet_NaN()), ErrorCode::data_not_finite,
                 Severity::error, {"weight_s_channel"});

  TestFile book = file_of(2, 256, {2, 16});
  std::vector<float> levels = fixed_codebook;
  std::swap(levels[3], levels[4]);
  book.values("a.weight_codebook", DType::f32, {16}, levels);
  expect_finding(Opened(book).check(CheckDepth::data), ErrorCode::data_implausible,
                 Severity::warning, {"weight_codebook", "index 4"});

  TestFile flat;
  std::vector<std::byte> bytes(64 * 128);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(i * 2654435761u >> 9);
  flat.raw("a.weight", DType::i8, {64, 128}, bytes);
  flat.codes("a.weight_s_rel", DType::f8_e4m3, {64, 16});
  flat.floats("a.weight_s_channel", DType::f32, {64}, 0.01f);
  flat.values("a.weight_codebook", DType::f32, {16}, fixed_codebook);
  flat.marker("a", g16_marker);
  expect_finding(Opened(flat).check(CheckDepth::data), ErrorCode::data_implausible,
                 Severity::warning, {"a.weight:"});
}

}  // namespace
}  // namespace parfait::formats
