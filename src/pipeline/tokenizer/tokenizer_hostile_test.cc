// Files that are no tokenizer of Qwen's, or a broken one: each is refused by one sentence.

#include <gtest/gtest.h>

#include <algorithm>

#include "models/models_testing.h"
#include "pipeline/tokenizer/tokenizer.h"
#include "support/file_text.h"
#include "support/safetensors_builder.h"

namespace parfait::pipeline {
namespace {

const std::string folder = models::golden_path("pipelines/klein/tokenizer");

std::string read(const std::string& path) { return test::file_text(path); }

// The message for a file of this name with this text, which must be refused by one line that
// begins with the file's path.
class HostileTokenizer : public testing::Test {
 protected:
  std::string refusal(const std::string& text, const std::string& name = "tokenizer.json") {
    const std::filesystem::path path = folder_.write(name, text);
    const auto opened = Tokenizer::open(path);
    if (opened.ok()) return "(accepted)";
    const std::string& message = opened.error().message;
    EXPECT_TRUE(message.starts_with(path.string() + ": ")) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    EXPECT_LT(message.size(), 1000u) << message;
    return message.substr(path.string().size() + 2);
  }
  void expect(const std::string& text, const std::string& part,
              const std::string& name = "tokenizer.json") {
    const std::string message = refusal(text, name);
    EXPECT_NE(message.find(part), std::string::npos) << "wanted: " << part << "\ngot: " << message;
  }
  // The good file with one thing replaced.
  std::string with(const std::string& from, const std::string& to) const {
    std::string text = good_;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    if (at != std::string::npos) text.replace(at, from.size(), to);
    return text;
  }
  // The good file with the value of "key":[...] or "key":{...} replaced; values hold no brackets
  // of their own kind but in strings, so the end is named.
  std::string between(const std::string& from, const std::string& to,
                      const std::string& value) const {
    const std::size_t first = good_.find(from), last = good_.find(to, first + from.size());
    EXPECT_NE(last, std::string::npos) << from;
    return good_.substr(0, first + from.size()) + value + good_.substr(last);
  }
  std::string with_vocabulary(const std::string& value) const {
    return between("\"vocab\":", ",\"merges\":", value);
  }
  std::string with_merges(const std::string& value) const {
    return good_.substr(0, good_.find("\"merges\":") + 9) + value + "}}";
  }
  std::string with_added(const std::string& value) const {
    return between("\"added_tokens\":", ",\"normalizer\":", value);
  }

  test::TemporaryFolder folder_;
  const std::string good_ = read(folder + "/tokenizer.json");
};

TEST_F(HostileTokenizer, what_would_change_the_ids) {
  expect(with("\"NFC\"", "\"NFKC\""), "not NFC");
  expect(with("\"BPE\"", "\"Unigram\""), "not BPE");
  expect(with("\\\\p{N}|", "\\\\p{N}{1,3}|"), "is not Qwen's");
  expect(with("\"Isolated\"", "\"Removed\""), "isolates");
  expect(with("\"ignore_merges\":false", "\"ignore_merges\":true"), "ignore_merges");
  expect(with("\"byte_fallback\":false", "\"byte_fallback\":true"), "byte_fallback");
  expect(with("\"lstrip\":false", "\"lstrip\":true"), "lstrip");
  expect(with("\"dropout\":null", "\"dropout\":0.1"), "model.dropout is set");
  expect(with("\"invert\":false", "\"invert\":true"), "isolates");
  expect(with("\"add_prefix_space\":false", "\"add_prefix_space\":true"), "without a prefix");
  expect(with("\"normalizer\":{\"type\":\"NFC\"}", "\"normalizer\":null"), "not NFC");
}

TEST_F(HostileTokenizer, cut_short) {
  for (std::size_t length = 0; length < good_.size(); length += good_.size() / 211)
    expect(good_.substr(0, length), "this is no JSON");
}

TEST_F(HostileTokenizer, no_json) {
  for (const std::string text : {"", " ", "\xef\xbb\xbf", "GGUF", "{]", "\"\xff\"",
                                 "{\"model\":\"\xc3\x28\"}", "{\"a\":1}x"})
    expect(text, "this is no JSON");
  expect(std::string(5000, '['), "this is no JSON");
  expect(std::string(64, '\0'), "this is no JSON");
}

TEST_F(HostileTokenizer, other_json) {
  for (const std::string text :
       {"null", "1", "[]", "{}", "\"x\"", "{\"model\":[]}", "{\"model\":1}",
        "{\"model\":{\"type\":1}}", "{\"model\":{\"type\":\"BPE\\n\"}}"})
    expect(text, "model.type is not BPE");
}

TEST_F(HostileTokenizer, wrong_types) {
  for (const std::string value : {"null", "[]", "1", "\"x\"", "[{\"a\":1}]"})
    expect(with_vocabulary(value), "there is no vocabulary");
  for (const std::string value : {"null", "{}", "1", "\"a b\""})
    expect(with_merges(value), "there are no merges");
  for (const std::string value : {"{}", "1", "\"x\""})
    expect(with_added(value), "added_tokens is no list");
  for (const std::string value :
       {"[1]", "[null]", "[{}]", "[[]]", "[{\"content\":\"x\"}]", "[{\"id\":352}]",
        "[{\"id\":\"352\",\"content\":\"x\"}]", "[{\"id\":352.5,\"content\":\"x\"}]"})
    expect(with_added(value), "an added token has no content or no id");
  for (const std::string value : {"null", "[]", "{}", "\"Sequence\"", "{\"type\":\"Sequence\"}",
                                  "{\"type\":\"Sequence\",\"pretokenizers\":{}}",
                                  "{\"type\":\"Sequence\",\"pretokenizers\":[1]}"})
    expect(between("\"pre_tokenizer\":", ",\"post_processor\":", value), "is not a Sequence");
  expect(between("\"pre_tokenizer\":", ",\"post_processor\":",
                 "{\"type\":\"Sequence\",\"pretokenizers\":[1,2]}"),
         "isolates");
}

TEST_F(HostileTokenizer, ids) {
  for (const std::string id : {"-1", "16777216", "4294967296", "9223372036854775807",
                               "18446744073709551615", "1.5", "1e3", "\"5\"", "null", "[5]"})
    expect(with("\"A\":32", "\"A\":" + id), "token A: its id is not a number from 0 to");
  expect(with("\"A\":32", "\"A\":33"), "id 33 is given to two tokens");
  expect(with("\"A\":32", "\"A\":32,\"A\":900"), "token A stands twice");
  expect(with("\"A\":32", "\"AA\":32"), "the vocabulary lacks the byte 65 (A)");
  expect(with_vocabulary("{}"), "the vocabulary lacks the byte 0");
  for (const std::string id : {"-1", "16777216", "9223372036854775807"})
    expect(with("\"id\":353", "\"id\":" + id), "the added token <|im_start|> has the id " + id);
  expect(with("\"id\":353", "\"id\":99999999999999999999"), "this is no JSON");
  expect(with("\"id\":353", "\"id\":352"), "id 352 is given to two tokens");
  expect(with("\"id\":353", "\"id\":32"), "id 32 is given to two tokens");
  expect(with("\"<|im_end|>\"", "\"<|im_start|>\""), "the added token <|im_start|> stands twice");
  expect(with("\"<|im_start|>\"", "\"\""), "the added token  has the id 353");
}

TEST_F(HostileTokenizer, merges) {
  expect(with_merges("[[\"a\"]]"), "merge 0 is no pair");
  expect(with_merges("[[\"e\",\"r\"],[\"a\",\"b\",\"c\"]]"), "merge 1 is no pair");
  expect(with_merges("[[1,2]]"), "merge 0 is no pair");
  expect(with_merges("[1]"), "merge 0 is no pair");
  expect(with_merges("[\"er\"]"), "the merge er is no pair");
  expect(with_merges("[\"\"]"), "is no pair");
  expect(with_merges("[[\"a\",\"\\u0000\"]]"), "which is not in the vocabulary");
  expect(with_merges("[[\"zz\",\"q\"]]"), "a merge has the token zz");
  expect(with_merges("[[\"z\",\"q\"]]"), "a merge has the token zq");
  // A merge that makes one of its own halves again would have no end.
  std::string empty = with("\"A\":32", "\"A\":32,\"\":900");
  empty.replace(empty.find("\"merges\":["), 10, "\"merges\":[[\"\",\"a\"],[\"a\",\"\"],");
  expect(empty, "an empty token");
}

// A merge that is named twice has its last rank, as in `tokenizers`.
TEST_F(HostileTokenizer, a_merge_named_twice) {
  const std::string words = "\"A\":32,\"ab\":900,\"bc\":901";
  const auto ids = [&](const std::string& merges) {
    std::string text = with("\"A\":32", words);
    text = text.substr(0, text.find("\"merges\":") + 9) + merges + "}}";
    const auto opened = Tokenizer::open(folder_.write("tokenizer.json", text));
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return *opened->encode("abc");
  };
  EXPECT_EQ(ids("[\"a b\",\"b c\"]"), (std::vector<std::int64_t>{900, 66}));
  EXPECT_EQ(ids("[\"a b\",\"b c\",\"a b\"]"), (std::vector<std::int64_t>{64, 901}));
}

// Any byte changed: refused by a sentence, or read; what is read can be used.
TEST_F(HostileTokenizer, any_byte_changed) {
  std::uint64_t state = 1;
  std::size_t read = 0;
  for (int i = 0; i < 600; ++i) {
    std::string text = good_;
    for (int changes = 0; changes <= i % 3; ++changes) {
      state = state * 6364136223846793005 + 1442695040888963407;
      text[(state >> 33) % text.size()] = "0a\"{}[]:,-\\\x01\xff"[(state >> 20) % 13];
    }
    const auto opened = Tokenizer::open(folder_.write("tokenizer.json", text));
    if (!opened.ok()) {
      EXPECT_FALSE(opened.error().message.empty());
      EXPECT_EQ(opened.error().message.find('\n'), std::string::npos) << opened.error().message;
      continue;
    }
    ++read;
    const auto ids = opened->encode("the layers of <|im_start|> it's 12\n");
    ASSERT_TRUE(ids.ok()) << ids.error().message;
    for (std::int64_t id : *ids) EXPECT_LT(static_cast<std::uint64_t>(id), opened->size());
  }
  EXPECT_GT(read, 10u);
}

TEST_F(HostileTokenizer, vocabulary_with_merges) {
  const std::string vocabulary = good_.substr(
      good_.find("\"vocab\":") + 8, good_.find(",\"merges\":") - good_.find("\"vocab\":") - 8);
  const auto expect_pair = [&](const std::string& merges, const std::string& part) {
    folder_.write("merges.txt", merges);
    expect(vocabulary, part, "vocab.json");
  };
  expect_pair("#version: 0.2\ne r\n", "which tokens were added to it is not known");
  expect_pair("e r\r\ner\r\n", "the merge er is no pair");
  expect_pair("e r s\n", "a merge has the token r s");
  expect_pair(std::string("e r\0\n", 5), "a merge has the token r");
  expect("[]", "there is no vocabulary", "vocab.json");
  expect("{\"a\":", "this is no JSON", "vocab.json");
  std::filesystem::remove(folder_.path() / "merges.txt");
  const auto opened = Tokenizer::open(folder_.write("vocab.json", vocabulary));
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("merges.txt"), std::string::npos) << opened.error().message;
}

TEST_F(HostileTokenizer, no_file_at_all) {
  const auto message = [](const std::filesystem::path& path) {
    const auto opened = Tokenizer::open(path);
    return opened.ok() ? "(accepted)" : opened.error().message;
  };
  EXPECT_NE(message(folder_.path()).find("has no tokenizer.json"), std::string::npos);
  EXPECT_NE(message(folder_.path() / "absent.json").find("absent.json"), std::string::npos);
  EXPECT_NE(message("/dev/zero").find("/dev/zero"), std::string::npos);
}

}  // namespace
}  // namespace parfait::pipeline
