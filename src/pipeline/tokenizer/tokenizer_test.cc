// Against the `tokenizers` package (tests/golden/pipelines/README.md).

#include "pipeline/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include "io/json.h"
#include "models/models_testing.h"
#include "pipeline/tokenizer/chat_template.h"
#include "pipeline/tokenizer/pre_tokenizer.h"
#include "support/file_text.h"

namespace parfait::pipeline {
namespace {

const std::string folder = models::golden_path("pipelines/klein/tokenizer");

std::string read(const std::string& path) { return test::file_text(path); }

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

// tools/make_tokenizer_goldens.py: every category of Unicode, marks, white space, special tokens.
TEST(Tokenizer, ids_of_very_nasty_texts) {
  const Tokenizer t = tokenizer();
  const auto cases = io::parse_json(read(models::golden_path("pipelines/tokenizer_nasty.json")),
                                    {.max_bytes = 1 << 22});
  ASSERT_TRUE(cases.ok()) << cases.error().message;
  ASSERT_GE(cases->array()->size(), 600u);
  for (const io::Json& one : *cases->array()) {
    const io::Json& text = (*one.array())[0];
    std::vector<std::int64_t> ids;
    for (const io::Json& id : *(*one.array())[1].array()) ids.push_back(*id.integer());
    const auto got = t.encode(*text.string());
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(*got, ids) << text.text();
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

}  // namespace
}  // namespace parfait::pipeline
