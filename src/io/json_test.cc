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
}

TEST(Json, what_is_refused) {
  for (const char* text : {"", "{", "{} x", "{\"a\":1,\"a\":2}", "{\"a\":{\"b\":1,\"b\":1}}", "nan",
                           "\"\\ud800\"", "\"\xff\""})
    EXPECT_FALSE(parse_json(text).ok()) << text;
  const std::string deep = std::string(40, '[') + std::string(40, ']');
  EXPECT_FALSE(parse_json(deep).ok());
  EXPECT_TRUE(parse_json(deep, {.max_bytes = 1000, .max_depth = 64}).ok());
  EXPECT_FALSE(parse_json("[1, 2, 3]", {.max_bytes = 8, .max_depth = 4}).ok());
  EXPECT_EQ(*parse_json("18446744073709551615")->number(), 18446744073709551615.0);
}

}  // namespace
}  // namespace parfait::io
