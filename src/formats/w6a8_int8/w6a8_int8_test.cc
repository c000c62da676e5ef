#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "base/hadamard.h"
#include "formats/format_testing.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::formats {
namespace {

using namespace testing;

std::string marker_with(std::string_view more) { return marker_text("w6a8_int8", more); }
const std::string g16_marker = marker_with("\"group_size\": 16, \"convrot_groupsize\": 256");

TestFile file_of(std::uint64_t rows, std::uint64_t columns, const Shape& s_rel,
                 std::string_view marker = g16_marker) {
  TestFile file;
  file.codes("a.weight", DType::i8, {rows, columns / 4 * 3});
  file.codes("a.weight_s_rel", DType::f8_e4m3, s_rel);
  file.floats("a.weight_s_channel", DType::f32, {rows}, 0.01f);
  if (!marker.empty()) file.marker("a", marker);
  return file;
}

std::vector<std::byte> pack(const std::vector<int>& codes) {
  const std::size_t columns = codes.size();
  std::vector<std::byte> row(columns / 4 * 3);
  for (std::size_t k = 0; k < columns; ++k) {
    row[k / 2] |= static_cast<std::byte>((codes[k] & 15) << (k % 2 * 4));
    row[columns / 2 + k / 4] |= static_cast<std::byte>((codes[k] >> 4) << (k % 4 * 2));
  }
  return row;
}

// Codes of a layer of K columns a row, as a normal weight has them.
std::vector<int> bell(std::size_t n) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(32, 12);
  std::vector<int> codes(n);
  for (int& code : codes)
    code = static_cast<int>(std::fmin(std::fmax(std::nearbyint(normal(random)), 1), 63));
  return codes;
}

TEST(W6A8, the_specifications_bytes) {
  const std::vector<int> codes = {1, 63, 32, 33, 31, 48, 16, 2};
  const std::vector<std::byte> row = byte_list({0xf1, 0x10, 0x0f, 0x20, 0xac, 0x1d});
  EXPECT_EQ(pack(codes), row);
  for (std::uint64_t k = 0; k < 8; k += 4) {
    const FourCodes four = w6a8_codes(row.data(), 8, k);
    for (std::uint64_t i = 0; i < 4; ++i)
      EXPECT_EQ(four.codes[i], static_cast<unsigned>(codes[k + i]));
  }
}

TEST(W6A8, every_code_is_decoded) {
  std::vector<int> codes;
  for (int code = 0; code < 64; ++code) codes.push_back(code);
  TestFile file;
  file.raw("a.weight", DType::i8, {1, 48}, pack(codes));
  file.raw("a.weight_s_rel", DType::f8_e4m3, {1, 4}, byte_list({0x38, 0x4a, 0x30, 0x50}));
  file.floats("a.weight_s_channel", DType::f32, {1}, 0.5f);
  file.marker("a", marker_with("\"group_size\": 16, \"convrot_groupsize\": 64"));
  const Opened opened(file);
  expect_clean(opened.check());
  EXPECT_EQ(opened.layer().columns, 64u);
  std::vector<float> row = opened.decode();
  rotate_groups(row, 64);
  const float s_rel[] = {1, 5, 0.5f, 8};
  for (int c = 0; c < 64; ++c) {
    const float exact = std::nearbyint(static_cast<float>(c - 32) * s_rel[c / 16]);
    EXPECT_EQ(std::nearbyint(row[static_cast<std::size_t>(c)] / 0.5f),
              std::fmin(std::fmax(exact, -127), 127));
  }
}

TEST(W6A8, markers) {
  const Opened opened(file_of(4, 256, {4, 16}));
  expect_clean(opened.check());
  EXPECT_EQ(opened.layer().columns, 256u);
  EXPECT_EQ(opened.layer().scale_group, 16u);
  EXPECT_EQ(opened.layer().rotate_group, 256u);
  const Opened by_shape(file_of(4, 512, {4, 16}, marker_with("\"convrot_groupsize\": 256")));
  EXPECT_EQ(by_shape.layer().scale_group, 32u);
  expect_clean(by_shape.check());
  expect_finding(by_shape.check(), ErrorCode::marker_default, Severity::note, {"32"});
  // The marker's group contradicts the scales.
  expect_finding(Opened(file_of(4, 512, {4, 16})).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_s_rel", "[4, 16]", "[4, 32]"});
  for (const int group : {4, 8, 24})
    expect_finding(Opened(file_of(4, 256, {4, 16},
                                  marker_with("\"convrot_groupsize\": 256, \"group_size\": " +
                                              std::to_string(group))))
                       .check(),
                   ErrorCode::layer_group, Severity::error, {"K = 256", std::to_string(group)});
  expect_finding(Opened(file_of(4, 256, {4, 16},
                                marker_with("\"group_size\": 16, \"convrot_groupsize\": 256, "
                                            "\"convrot\": false")))
                     .check(),
                 ErrorCode::marker_key, Severity::error);
}

TEST(W6A8, claims) {
  const Opened proven(file_of(4, 256, {4, 16}, ""));
  EXPECT_EQ(proven.layer().format->name, "w6a8_int8");
  EXPECT_EQ(proven.layer().columns, 256u);
  EXPECT_EQ(proven.layer().scale_group, 16u);
  EXPECT_TRUE(Opened(file_of(4, 512, {4, 16}, "")).checkpoint().layers.empty())
      << "groups of 32 six-bit codes are as wide as groups of 48 four-bit ones";
}

TEST(W6A8, malformed_parts) {
  TestFile width;
  width.codes("a.weight", DType::i8, {4, 100});
  width.codes("a.weight_s_rel", DType::f8_e4m3, {4, 16});
  width.floats("a.weight_s_channel", DType::f32, {4}, 0.01f);
  width.marker("a", g16_marker);
  expect_finding(Opened(width).check(), ErrorCode::part_shape, Severity::error, {"[N, 3K/4]"});
  expect_finding(
      Opened(file_of(4, 48, {4, 3}, marker_with("\"group_size\": 16, \"convrot_groupsize\": 16")))
          .check(),
      ErrorCode::layer_columns, Severity::error, {"K = 48", "32"});
  TestFile book = file_of(4, 256, {4, 16});
  book.floats("a.weight_codebook", DType::f32, {16}, 1);
  expect_finding(Opened(book).check(), ErrorCode::part_unused, Severity::error,
                 {"weight_codebook"});
}

TEST(W6A8, a_four_bit_weight_under_this_marker_does_not_fit) {
  TestFile file;
  file.codes("a.weight", DType::i8, {4, 384});  // 768 four-bit codes
  file.codes("a.weight_s_rel", DType::f8_e4m3, {4, 48});
  file.floats("a.weight_s_channel", DType::f32, {4}, 0.01f);
  file.marker("a", g16_marker);
  expect_finding(Opened(file).check(), ErrorCode::part_shape, Severity::error,
                 {"weight_s_rel", "[4, 32]"});
}

TEST(W6A8, split_and_size) {
  const Opened opened(file_of(4, 512, {4, 32}));
  const SplitRule rule = opened.layer().format->split(opened.layer());
  EXPECT_EQ(rule.columns, 256u);
  EXPECT_EQ(rule.why, "ConvRot group 256, scale group 16, pack 32");
  expect_size_matches(opened.layer());
  const Opened small(
      file_of(4, 192, {4, 4}, marker_with("\"group_size\": 48, \"convrot_groupsize\": 64")));
  EXPECT_EQ(small.layer().format->split(small.layer()).columns, 192u);
}

std::vector<Finding> check_codes(const std::vector<std::byte>& codes, std::uint64_t rows) {
  TestFile file;
  file.raw("a.weight", DType::i8, {rows, codes.size() / rows}, codes);
  file.codes("a.weight_s_rel", DType::f8_e4m3, {rows, codes.size() / rows * 4 / 3 / 16});
  file.floats("a.weight_s_channel", DType::f32, {rows}, 0.01f);
  file.marker("a", g16_marker);
  return Opened(file).check(CheckDepth::data);
}

TEST(W6A8, deep_check_of_codes) {
  std::vector<int> codes = bell(8192);
  expect_clean(check_codes(pack(codes), 1));
  codes[77] = codes[99] = 0;
  const auto findings = check_codes(pack(codes), 1);
  expect_finding(findings, ErrorCode::data_code_range, Severity::warning,
                 {"2, the first at index 77"});
  expect_sound(findings);
}

TEST(W6A8, four_codes_in_three_bytes_are_implausible_as_planes) {
  const std::vector<int> codes = bell(16384);
  std::vector<std::byte> interleaved;
  for (std::size_t k = 0; k < codes.size(); k += 4) {
    const int word = codes[k] | codes[k + 1] << 6 | codes[k + 2] << 12 | codes[k + 3] << 18;
    for (int i = 0; i < 3; ++i) interleaved.push_back(static_cast<std::byte>(word >> 8 * i & 255));
  }
  const auto findings = check_codes(interleaved, 1);
  expect_finding(findings, ErrorCode::data_implausible, Severity::warning, {"another packing"});
  expect_sound(findings);
}

}  // namespace
}  // namespace parfait::formats
