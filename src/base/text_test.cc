#include "base/text.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

namespace parfait {
namespace {

TEST(Glob, matches_whole_names) {
  const struct {
    const char *pattern, *text;
    bool matches;
  } cases[] = {
      {"", "", true},
      {"", "a", false},
      {"a", "a", true},
      {"a", "b", false},
      {"a", "aa", false},
      {"*", "", true},
      {"*", "blocks.0.attn", true},
      {"**", "x", true},
      {"?", "", false},
      {"?", "x", true},
      {"blocks.*.mlp.fc1", "blocks.17.mlp.fc1", true},
      {"blocks.*.mlp.fc1", "blocks.17.mlp.fc12", false},
      {"blocks.?.mlp.*", "blocks.7.mlp.fc2", true},
      {"blocks.?.mlp.*", "blocks.17.mlp.fc2", false},
      {"*.fc1", "a.fc1", true},
      {"*.fc1", "fc1", false},
      {"*a*b*", "xxaxxbxx", true},
      {"*a*b*", "xxbxxaxx", false},
      {"a*", "", false},
      {"*ab", "aab", true},
      {"*aab", "aaab", true},
      {"[a]", "a", false},  // brackets mean themselves
      {"[a]", "[a]", true},
      {"a\\*", "a*", false},  // and so does a backslash
  };
  for (const auto& c : cases)
    EXPECT_EQ(glob_match(c.pattern, c.text), c.matches) << c.pattern << " on " << c.text;
}

TEST(Glob, many_stars_do_not_take_exponential_time) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "a*";
  EXPECT_FALSE(glob_match(pattern + "b", std::string(20000, 'a')));
  EXPECT_TRUE(glob_match(pattern, std::string(20000, 'a')));
}

TEST(BytesText, units) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1024), "1.00 KiB");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text((1 << 20) - 1), "1.00 MiB") << "never 1024.00 of the smaller unit";
  EXPECT_EQ(bytes_text(std::uint64_t{1} << 30), "1.00 GiB");
  EXPECT_EQ(bytes_text(20970000000), "19.53 GiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<std::uint64_t>::max()), "16.00 EiB");
}

TEST(NearestName, finds_slips_and_nothing_else) {
  const std::vector<std::string_view> names = {"blocks.0.attn.qkv_proj", "blocks.0.attn.out_proj",
                                               "blocks.0.mlp.fc1", "blocks.0.mlp.fc2"};
  EXPECT_EQ(nearest_name("blocks.0.mlp.fc3", names), "blocks.0.mlp.fc1");
  EXPECT_EQ(nearest_name("blocks.0.attn.qkv_porj", names), "blocks.0.attn.qkv_proj");
  EXPECT_EQ(nearest_name("block.0.mlp.fc2", names), "blocks.0.mlp.fc2");
  EXPECT_EQ(nearest_name("blocks.0.mlp.fc2", names), "blocks.0.mlp.fc2");
  EXPECT_EQ(nearest_name("final_layer", names), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name(std::string(5000, 'x'), names), "");
  const std::vector<std::string_view> short_names = {"ab"};
  EXPECT_EQ(nearest_name("abc", short_names), "ab");
}

}  // namespace
}  // namespace parfait
