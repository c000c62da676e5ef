#include "io/json.h"

#include <gtest/gtest.h>

namespace parfait::io {
namespace {

TEST(Json, values_keep_their_kind) {
  auto json = parse_json(
      R"({"a": 1, "b": -9223372036854775808, "c": 1.0, "d": "x\n\"", "e": [true, null], "f": {}})");
  ASSERT_TRUE(json.ok()) << json.error().message;
  EXPECT_EQ(*json->find("a")->integer(), 1);
  EXPECT_EQ(*json->find("b")->integer(), INT64_MIN);
  EXPECT_EQ(json->find("c")->integer(), nullptr);
  EXPECT_EQ(*json->find("c")->number(), 1.0);
  EXPECT_EQ(*json->find("d")->string(), "x\n\"");
  ASSERT_EQ(json->find("e")->array()->size(), 2u);
  EXPECT_TRUE(*json->find("e")->array()->front().boolean());
  EXPECT_TRUE(json->find("f")->object()->empty());
  EXPECT_EQ(json->find("g"), nullptr);
}

TEST(Json, text_is_json_again_and_equality_ignores_order) {
  auto a = parse_json(R"({"format": "int8_tensorwise", "convrot": true, "n": [1, 2.5, null]})");
  auto b = parse_json(R"({"convrot":true,"n":[1,2.5,null],"format":"int8_tensorwise"})");
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_TRUE(*a == *b);
  EXPECT_EQ(a->text(), R"({"format": "int8_tensorwise", "convrot": true, "n": [1, 2.5, null]})");
  EXPECT_TRUE(*parse_json(a->text()) == *a);
  EXPECT_FALSE(*a == *parse_json(R"({"convrot":true})"));
  for (const char* text : {"1.0", "-0.0", "1e+22", "0.1", "18446744073709551615", "5e-324"}) {
    const auto number = parse_json(text);
    const auto again = parse_json(number->text());
    ASSERT_TRUE(again.ok()) << number->text();
    ASSERT_NE(again->number(), nullptr) << number->text() << " is a whole number";
    EXPECT_EQ(*again->number(), *number->number()) << number->text();
  }
}

TEST(Json, what_is_refused) {
  for (const char* text : {"", "{", "{} x", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"b\":1}}", "nan",
                           "\"\\ud800\"", "\"\xff\""})
    EXPECT_FALSE(parse_json(text).ok()) << text;
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_FALSE(parse_json(deep).ok());
  EXPECT_TRUE(parse_json(deep, {.max_bytes = 1000, .max_depth = 64}).ok());
  EXPECT_FALSE(parse_json("[1, 2, 3]", {.max_bytes = 8, .max_depth = 4}).ok());
}

TEST(Json, numbers_at_the_borders) {
  EXPECT_EQ(*parse_json("9223372036854775807")->integer(), INT64_MAX);
  EXPECT_EQ(*parse_json("9223372036854775808")->number(), 9223372036854775808.0);
  EXPECT_EQ(*parse_json("18446744073709551615")->number(), 18446744073709551615.0);
  for (const char* text : {"18446744073709551616", "-9223372036854775809", "1e400", "01", "+1"})
    EXPECT_FALSE(parse_json(text).ok()) << text;
}

TEST(Json, objects_of_many_keys_compare_by_key) {
  constexpr int count = 50'000;  // comparing each key with each would take minutes
  std::string up = "{", down = "{";
  for (int i = 0; i < count; ++i) {
    up += (i ? ",\"k" : "\"k") + std::to_string(i) + "\":" + std::to_string(i);
    const std::string last = std::to_string(count - 1 - i);
    down += (i ? ",\"k" : "\"k") + last + "\":" + last;
  }
  const auto a = parse_json(up + "}"), b = parse_json(down + "}"),
             c = parse_json(down + ",\"x\":1}");
  ASSERT_TRUE(a.ok() && b.ok() && c.ok());
  EXPECT_TRUE(*a == *b);
  EXPECT_FALSE(*a == *c);
  EXPECT_FALSE(*parse_json(R"({"a":1,"b":2})") == *parse_json(R"({"a":1,"c":2})"));
  EXPECT_FALSE(*parse_json(R"({"a":1,"b":2})") == *parse_json(R"({"a":1,"b":3})"));
}

}  // namespace
}  // namespace parfait::io
