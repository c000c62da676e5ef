#include "models/config_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/safetensors_builder.h"

namespace parfait::models {
namespace {

Result<ConfigFile> config_of(const std::string& text) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "config.json") << text;
  return ConfigFile::beside(folder.path() / "model.safetensors");
}

TEST(ConfigFile, numbers_are_found_where_they_stand) {
  const auto config = config_of(
      R"({"a": 3, "b": 0.5, "c": null, "d": {"e": 7, "f": {"g": 8}}, "model_type": "qwen3"})");
  ASSERT_TRUE(config.ok()) << config.error().message;
  EXPECT_EQ(config->number("a", 0, 10, 1).value(), 3);
  EXPECT_EQ(config->number("b", 0, 10, 1).value(), 0.5);
  EXPECT_EQ(config->number("c", 0, 10, 1).value(), 1);
  EXPECT_EQ(config->number("d.e", 0, 10, 1).value(), 7);
  EXPECT_EQ(config->number("d.f.g", 0, 10, 1).value(), 8);
  EXPECT_EQ(config->number("a.e", 0, 10, 1).value(), 1);
  EXPECT_EQ(config->number("x", 0, 10, 1).value(), 1);
  EXPECT_EQ(config->text("model_type"), "qwen3");
  EXPECT_FALSE(config->text("a"));
}

TEST(ConfigFile, what_is_out_of_range_or_of_another_type_is_an_error) {
  for (const char* value : {"-1", "11", "1e300", "\"3\"", "true", "[3]", "{}"}) {
    const auto config = config_of(std::string("{\"a\": ") + value + "}");
    ASSERT_TRUE(config.ok()) << config.error().message;
    const auto number = config->number("a", 0, 10, 1);
    ASSERT_FALSE(number.ok()) << value;
    EXPECT_EQ(number.error().code, ErrorCode::model_tensor);
    EXPECT_NE(number.error().message.find("config.json: a is "), std::string::npos)
        << number.error().message;
    EXPECT_NE(number.error().message.find("from 0 to 10"), std::string::npos);
  }
  for (const char* text : {"", "[]", "null", "3", "{\"a\": }", "{\"a\": 1, \"a\": 2}"})
    EXPECT_FALSE(config_of(text).ok()) << text;
}

TEST(ConfigFile, no_file_is_an_empty_one) {
  const test::TemporaryFolder folder;
  const auto config = ConfigFile::beside(folder.path());
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(config->number("a", 0, 10, 2).value(), 2);
}

}  // namespace
}  // namespace parfait::models
