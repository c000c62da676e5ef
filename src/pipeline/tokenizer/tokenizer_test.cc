// Against the `tokenizers` package (tests/golden/pipelines/README.md).

#include "pipeline/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "io/json.h"
#include "models/models_testing.h"
#include "pipeline/tokenizer/chat_template.h"
#include "pipeline/tokenizer/pre_tokenizer.h"

namespace parfait::pipeline {
namespace {

const std::string folder = models::golden_path("pipelines/klein/tokenizer");

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

Tokenizer tokenizer() { return *Tokenizer::open(folder); }

TEST(Tokenizer, ids_of_nasty_texts) {
  const Tokenizer t = tokenizer();
  const auto cases = io::parse_json(read(models::golden_path("pipelines/tokenizer_cases.json")),
                                    {.max_bytes = 1 << 22});
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  ASSERT_GE(cases->array()->size(), 36u);
  for (const io::Json& one : *cases->array()) {
    std::vector<std::int64_t> ids;
    for (const io::Json& id : *one.find("ids")->array()) ids.push_back(*id.integer());
    const auto got = t.encode(*one.find("text")->string());
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(*got, ids) << one.find("text")->text();
  }
}

TEST(Tokenizer, prompts_of_both_pipelines) {
  for (const std::string pipeline : {"klein", "z_image"}) {
    const models::Golden golden(
        models::golden_path("pipelines/" + pipeline + "/golden.safetensors"));
    const auto index = golden.index().shards()[0].metadata;
    std::string prompt;
    for (const auto& [key, value] : index)
      if (key == "prompt") prompt = value;
    ASSERT_FALSE(prompt.empty());
    const auto ids =
        tokenizer().encode(pipeline == "klein" ? klein_prompt(prompt) : z_image_prompt(prompt));
    ASSERT_TRUE(ids.ok());
    std::vector<std::int64_t> expected = golden.integers("tokens.ids");
    const std::vector<std::int64_t> mask = golden.integers("tokens.mask");
    expected.resize(static_cast<std::size_t>(std::count(mask.begin(), mask.end(), 1)));
    EXPECT_EQ(*ids, expected);
  }
}

TEST(Tokenizer, pieces) {
  using Pieces = std::vector<std::string_view>;
  EXPECT_EQ(pre_tokenize("a'\u017fx"), (Pieces{"a", "'\u017f", "x"}));
  EXPECT_EQ(pre_tokenize("I'LL go"), (Pieces{"I", "'LL", " go"}));
  EXPECT_EQ(pre_tokenize("a'Kx"), (Pieces{"a", "'Kx"}));
  EXPECT_EQ(pre_tokenize("x  \n \n  y"), (Pieces{"x", "  \n \n", " ", " y"}));
  EXPECT_EQ(pre_tokenize("12\u00bd"), (Pieces{"1", "2", "\u00bd"}));
  EXPECT_EQ(pre_tokenize("!?\r\n\r\n a"), (Pieces{"!?\r\n\r\n", " a"}));
  EXPECT_EQ(pre_tokenize("\u3000\u3000\u6f22"), (Pieces{"\u3000", "\u3000\u6f22"}));
  EXPECT_EQ(pre_tokenize("a   "), (Pieces{"a", "   "}));
}

TEST(Tokenizer, a_word_of_a_million_letters) {
  const auto ids = tokenizer().encode(std::string(1'000'000, 'e'));
  ASSERT_TRUE(ids.ok());
  EXPECT_GT(ids->size(), 0u);
}

TEST(Tokenizer, a_prompt_that_is_not_utf8) {
  const auto ids = tokenizer().encode("ab\xff");
  ASSERT_FALSE(ids.ok());
  EXPECT_EQ(ids.error().message, "the prompt is not UTF-8 from byte 2 on");
}

// Each is the golden's tokenizer with one thing changed, and what the sentence must have.
TEST(Tokenizer, files_that_are_refused) {
  const std::string good = read(folder + "/tokenizer.json");
  const std::string path = testing::TempDir() + "/parfait_tokenizer.json";
  for (const auto& [from, to, part] : {
           std::tuple<std::string, std::string, std::string>{"\"NFC\"", "\"NFKC\"", "not NFC"},
           {"\"BPE\"", "\"Unigram\"", "not BPE"},
           {"\\\\p{N}|", "\\\\p{N}{1,3}|", "is not Qwen's"},
           {"\"Isolated\"", "\"Removed\"", "isolates"},
           {"\"ignore_merges\":false", "\"ignore_merges\":true", "ignore_merges"},
           {"\"byte_fallback\":false", "\"byte_fallback\":true", "byte_fallback"},
           {"\"vocab\"", "\"words\"", "no vocabulary"},
           {"\"merges\"", "\"joins\"", "no merges"},
           {"\"lstrip\":false", "\"lstrip\":true", "lstrip"},
       }) {
    std::string text = good;
    const std::size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    std::ofstream(path, std::ios::binary) << text;
    const auto opened = Tokenizer::open(path);
    ASSERT_FALSE(opened.ok()) << from;
    EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
  }
  for (std::size_t length = 0; length < good.size(); length += good.size() / 37) {
    std::ofstream(path, std::ios::binary) << good.substr(0, length);
    EXPECT_FALSE(Tokenizer::open(path).ok()) << length;
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace parfait::pipeline
