#include "parfait/error.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "base/result.h"

namespace parfait {
namespace {

// --- printable ---

TEST(Printable, text_stays_as_it_is) {
  EXPECT_EQ(printable("blocks.0.attn.qkv_proj"), "blocks.0.attn.qkv_proj");
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("Größe 中文 🙂"), "Größe 中文 🙂");
}

TEST(Printable, control_characters_are_escaped) {
  EXPECT_EQ(printable("a\nb\tc"), "a\\x0ab\\x09c");
  EXPECT_EQ(printable(std::string_view("\0\x1b[31m\x7f", 7)), "\\x00\\x1b[31m\\x7f");
  EXPECT_EQ(printable("\xc2\x9b"
                      "31m"),
            "\\xc2\\x9b31m")
      << "a C1 control is a terminal's escape too";
  EXPECT_EQ(printable("\xc2\xa0"), "\xc2\xa0");
}

TEST(Printable, invalid_utf8_is_escaped_byte_by_byte) {
  const struct {
    const char *text, *expected;
  } cases[] = {
      {"\x80", "\\x80"},                             // a continuation alone
      {"\xc3", "\\xc3"},                             // cut short
      {"\xc3(", "\\xc3("},                           // not continued
      {"\xc0\xaf", "\\xc0\\xaf"},                    // overlong
      {"\xe0\x80\xaf", "\\xe0\\x80\\xaf"},           // overlong
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // a surrogate
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // past U+10FFFF
      {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
      {"\xff", "\\xff"},
      {"a\xe4"
       "b",
       "a\\xe4"
       "b"},
  };
  for (const auto& c : cases) EXPECT_EQ(printable(c.text), c.expected);
}

TEST(Printable, long_text_is_cut_between_characters) {
  EXPECT_EQ(printable(std::string(120, 'a')), std::string(120, 'a'));
  EXPECT_EQ(printable(std::string(121, 'a')), std::string(120, 'a') + "...");
  EXPECT_EQ(printable("äöü", 3), "äö...") << "at about `most`, never inside a character";
  EXPECT_EQ(printable("abcdef", 3), "abc...");
  EXPECT_LT(printable(std::string(1 << 20, '\n')).size(), 130u);
}

// --- codes ---

TEST(ErrorCodes, each_has_a_string_of_its_own_and_a_meaning) {
  const ErrorCode all[] = {
#define PARFAIT_ERROR(identifier, text, meaning) ErrorCode::identifier,
#include "parfait/errors.inc"
#undef PARFAIT_ERROR
  };
  const std::string_view texts[] = {
#define PARFAIT_ERROR(identifier, text, meaning) text,
#include "parfait/errors.inc"
#undef PARFAIT_ERROR
  };
  std::set<std::string_view> seen;
  for (std::size_t i = 0; i < std::size(all); ++i) {
    const std::string_view name = error_code_name(all[i]);
    EXPECT_EQ(name, texts[i]);
    EXPECT_TRUE(seen.insert(name).second) << name << " stands twice";
    EXPECT_EQ(name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_."), std::string::npos)
        << name;
    EXPECT_GT(error_code_meaning(all[i]).size(), 15u) << name;
  }
  EXPECT_EQ(error_code_name(ErrorCode::header_overlap), "header.overlap");
}

TEST(Severities, names) {
  EXPECT_EQ(severity_name(Severity::note), "note");
  EXPECT_EQ(severity_name(Severity::warning), "warning");
  EXPECT_EQ(severity_name(Severity::error), "error");
}

// --- findings ---

TEST(Finding, is_one_line) {
  Finding finding;
  finding.code = ErrorCode::part_shape;
  finding.layer = "blocks.0.q";
  finding.tensor = "blocks.0.q.weight_scale";
  finding.got = "[3]";
  finding.expected = "[4, 1]";
  finding.message = "the weight_scale does not fit";
  EXPECT_EQ(finding.line(),
            "error part.shape: blocks.0.q: blocks.0.q.weight_scale: the weight_scale does not fit; "
            "got [3], expected [4, 1]");
  finding.severity = Severity::warning;
  finding.file = "model-00001-of-00002.safetensors";
  finding.got.clear();
  finding.expected.clear();
  EXPECT_EQ(finding.line(),
            "warning part.shape: model-00001-of-00002.safetensors: blocks.0.q: "
            "blocks.0.q.weight_scale: the weight_scale does not fit");
}

TEST(Finding, text_from_a_file_cannot_break_the_line) {
  Finding finding;
  finding.code = ErrorCode::marker_key;
  finding.layer = "a\nb";
  finding.got = "\x1b[2J";
  finding.message = "m";
  EXPECT_EQ(finding.line(), "error marker.key: a\\x0ab: m; got \\x1b[2J");
}

// --- results ---

Result<int> half(int n) {
  if (n % 2 != 0) return make_error(ErrorCode::run_shape, "{} is odd", n);
  return n / 2;
}
Result<int> quarter(int n) {
  PARFAIT_TRY(const int h, half(n));
  PARFAIT_TRY(const int q, half(h));
  return q;
}
Result<Done> check_even(int n) {
  PARFAIT_CHECK_OK(half(n));
  return Done{};
}

TEST(Results, values_and_errors) {
  EXPECT_EQ(*half(8), 4);
  const Result<int> odd = half(7);
  ASSERT_FALSE(odd.ok());
  EXPECT_FALSE(odd);
  EXPECT_EQ(odd.error().code, ErrorCode::run_shape);
  EXPECT_EQ(odd.error().message, "7 is odd");
}

TEST(Results, errors_pass_through) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_EQ(quarter(5).error().message, "5 is odd");
  EXPECT_TRUE(check_even(2).ok());
  EXPECT_EQ(check_even(3).error().message, "3 is odd");
}

TEST(Results, hold_what_can_only_be_moved) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> moved = std::move(result).value();
  EXPECT_EQ(*moved, 3);
}

}  // namespace
}  // namespace parfait
