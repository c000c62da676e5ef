// Reads tokenizer.json, or vocab.json with merges.txt.

#include <simdjson.h>

#include <algorithm>
#include <system_error>
#include <unordered_set>

#include "base/result.h"
#include "io/reader.h"
#include "pipeline/tokenizer/pre_tokenizer.h"
#include "pipeline/tokenizer/tokenizer.h"

namespace parfait::pipeline {
namespace {

namespace dom = simdjson::dom;
namespace fs = std::filesystem;

constexpr std::uint64_t most_bytes = 128 << 20;
constexpr std::int64_t most_tokens = 1 << 24;

// What Qwen's files add to a vocabulary of 151,643.
constexpr std::int64_t qwen_vocabulary = 151'643;
constexpr const char* qwen_added[] = {"<|endoftext|>",
                                      "<|im_start|>",
                                      "<|im_end|>",
                                      "<|object_ref_start|>",
                                      "<|object_ref_end|>",
                                      "<|box_start|>",
                                      "<|box_end|>",
                                      "<|quad_start|>",
                                      "<|quad_end|>",
                                      "<|vision_start|>",
                                      "<|vision_end|>",
                                      "<|vision_pad|>",
                                      "<|image_pad|>",
                                      "<|video_pad|>",
                                      "<tool_call>",
                                      "</tool_call>",
                                      "<|fim_prefix|>",
                                      "<|fim_middle|>",
                                      "<|fim_suffix|>",
                                      "<|fim_pad|>",
                                      "<|repo_name|>",
                                      "<|file_sep|>",
                                      "<tool_response>",
                                      "</tool_response>",
                                      "<think>",
                                      "</think>"};

// GPT-2's printable character for a byte.
std::string spelled(unsigned byte) {
  const auto printable_byte = [](unsigned b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
  };
  unsigned point = byte;
  if (!printable_byte(byte)) {
    point = 256;
    for (unsigned b = 0; b < byte; ++b) point += printable_byte(b) ? 0 : 1;
  }
  if (point < 0x80) return std::string(1, static_cast<char>(point));
  return {static_cast<char>(0xc0 | point >> 6), static_cast<char>(0x80 | (point & 0x3f))};
}

Result<std::string> read_text(const fs::path& path) {
  PARFAIT_TRY(const io::ReaderPtr reader, io::open_file(path, Io::pread));
  if (reader->size() > most_bytes)
    return make_error(ErrorCode::tokenizer, "{}: {}, where a tokenizer has at most {}",
                      printable(path.string(), 1000), bytes_text(reader->size()),
                      bytes_text(most_bytes));
  std::vector<std::byte> scratch;
  PARFAIT_TRY(const ByteSpan bytes, reader->read(0, reader->size(), scratch));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

class TokenizerLoader {
 public:
  explicit TokenizerLoader(fs::path path)
      : path_(std::move(path)), name_(printable(path_.string(), 1000)) {}

  Result<Tokenizer> from_json();
  Result<Tokenizer> from_vocabulary();

 private:
  template <class... Args>
  Error bad(fmt::format_string<Args...> format, Args&&... args) const {
    return make_error(ErrorCode::tokenizer, "{}: {}", name_,
                      fmt::format(format, std::forward<Args>(args)...));
  }
  Result<dom::element> parse(const std::string& text);
  Result<Done> check_settings(const dom::element& root) const;
  Result<Done> take_id(std::int64_t id);
  Result<Done> read_vocabulary(const dom::element& vocabulary);
  Result<Done> add_merge(std::string_view left, std::string_view right);
  Result<Done> read_merges(const dom::element& merges);
  Result<Done> read_added(const dom::element& root);
  Result<Done> add_token(std::string text, std::int64_t id);
  Result<Tokenizer> finish();

  fs::path path_;
  std::string name_;
  dom::parser parser_;
  std::vector<bool> taken_;  // by id
  std::uint32_t rank_ = 0;   // of the next merge
  std::unordered_set<std::string> added_;
  Tokenizer t_;
};

Result<dom::element> TokenizerLoader::parse(const std::string& text) {
  dom::element root;
  if (const auto error = parser_.parse(text).get(root))
    return bad("this is no JSON: {}", simdjson::error_message(error));
  return root;
}

// Everything that would change the ids must be what is done here.
Result<Done> TokenizerLoader::check_settings(const dom::element& root) const {
  std::string_view text;
  bool flag = false;
  if (root["model"]["type"].get(text) || text != "BPE")
    return bad("model.type is not BPE, which is what can be run");
  for (const char* key : {"byte_fallback", "ignore_merges"})
    if (!root["model"][key].get(flag) && flag) return bad("model.{} is set", key);
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (!root["model"][key].get(text) && !text.empty()) return bad("model.{} is set", key);
  double dropout = 0;
  if (!root["model"]["dropout"].get(dropout) && dropout != 0) return bad("model.dropout is set");
  if (root["normalizer"]["type"].get(text) || text != "NFC")
    return bad("the normalizer is not NFC, as Qwen's is");
  if (root["pre_tokenizer"]["type"].get(text) || text != "Sequence")
    return bad("the pre_tokenizer is not a Sequence of Split and ByteLevel, as Qwen's is");
  dom::array steps;
  if (root["pre_tokenizer"]["pretokenizers"].get(steps) || steps.size() != 2)
    return bad("the pre_tokenizer is not a Sequence of Split and ByteLevel, as Qwen's is");
  dom::element split, bytes;
  if (steps.at(0).get(split) || steps.at(1).get(bytes)) return bad("the pre_tokenizer is empty");
  std::string_view behavior;
  if (split["type"].get(text) || text != "Split" || split["behavior"].get(behavior) ||
      behavior != "Isolated" || (!split["invert"].get(flag) && flag))
    return bad("the first pre-tokenizer is not a Split that isolates, as Qwen's is");
  if (split["pattern"]["Regex"].get(text) || text != qwen_pattern)
    return bad("the pattern {} is not Qwen's", printable(text, 200));
  if (bytes["type"].get(text) || text != "ByteLevel" ||
      (!bytes["add_prefix_space"].get(flag) && flag) || bytes["use_regex"].get(flag) || flag)
    return bad("the second pre-tokenizer is not ByteLevel without a prefix or a pattern");
  return Done{};
}

// No two tokens have one id.
Result<Done> TokenizerLoader::take_id(std::int64_t id) {
  const auto place = static_cast<std::size_t>(id);
  if (place >= taken_.size()) taken_.resize(std::max(place + 1, 2 * taken_.size()));
  if (taken_[place]) return bad("id {} is given to two tokens", id);
  taken_[place] = true;
  t_.size_ = std::max(t_.size_, static_cast<std::uint64_t>(id) + 1);
  return Done{};
}

Result<Done> TokenizerLoader::read_vocabulary(const dom::element& vocabulary) {
  dom::object tokens;
  if (vocabulary.get(tokens)) return bad("there is no vocabulary");
  for (const auto& [token, value] : tokens) {
    std::int64_t id = 0;
    if (value.get(id) || id < 0 || id >= most_tokens)
      return bad("token {}: its id is not a number from 0 to {}", printable(token), most_tokens);
    if (!t_.ids_.emplace(token, static_cast<std::uint32_t>(id)).second)
      return bad("token {} stands twice", printable(token));
    PARFAIT_CHECK_OK(take_id(id));
  }
  for (unsigned byte = 0; byte < 256; ++byte) {
    const auto it = t_.ids_.find(spelled(byte));
    if (it == t_.ids_.end())
      return bad("the vocabulary lacks the byte {} ({})", byte, spelled(byte));
    t_.bytes_[byte] = it->second;
  }
  return Done{};
}

Result<Done> TokenizerLoader::add_merge(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) return bad("merge {} has an empty token", rank_);
  const auto a = t_.ids_.find(std::string(left)), b = t_.ids_.find(std::string(right)),
             merged = t_.ids_.find(std::string(left) + std::string(right));
  for (const auto& [it, token] : {std::pair(a, std::string(left)),
                                  {b, std::string(right)},
                                  {merged, std::string(left) + std::string(right)}})
    if (it == t_.ids_.end())
      return bad("a merge has the token {}, which is not in the vocabulary", printable(token));
  // Of a pair that stands twice the last counts.
  t_.merges_.insert_or_assign(std::uint64_t{a->second} << 32 | b->second,
                              Tokenizer::Merge{rank_++, merged->second});
  return Done{};
}

Result<Done> TokenizerLoader::read_merges(const dom::element& element) {
  dom::array merges;
  if (element.get(merges)) return bad("there are no merges");
  for (const dom::element merge : merges) {
    std::string_view line, left, right;
    dom::array pair;
    if (!merge.get(line)) {
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos) return bad("the merge {} is no pair", printable(line));
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.get(pair) || pair.size() != 2 || pair.at(0).get(left) ||
               pair.at(1).get(right)) {
      return bad("merge {} is no pair", rank_);
    }
    PARFAIT_CHECK_OK(add_merge(left, right));
  }
  return Done{};
}

Result<Done> TokenizerLoader::add_token(std::string text, std::int64_t id) {
  if (text.empty() || id < 0 || id >= most_tokens)
    return bad("the added token {} has the id {}", printable(text), id);
  if (!added_.insert(text).second) return bad("the added token {} stands twice", printable(text));
  // One that is in the vocabulary too is the same token.
  const auto it = t_.ids_.find(text);
  if (it == t_.ids_.end() || it->second != id) PARFAIT_CHECK_OK(take_id(id));
  t_.added_.push_back({std::move(text), id});
  return Done{};
}

Result<Done> TokenizerLoader::read_added(const dom::element& root) {
  dom::array added;
  dom::element list;
  if (root["added_tokens"].get(list) || list.is_null()) return Done{};
  if (list.get(added)) return bad("added_tokens is no list");
  for (const dom::element token : added) {
    std::string_view content;
    std::int64_t id = 0;
    if (token["content"].get(content) || token["id"].get(id))
      return bad("an added token has no content or no id");
    for (const char* key : {"single_word", "lstrip", "rstrip", "normalized"}) {
      bool flag = false;
      if (!token[key].get(flag) && flag)
        return bad("the added token {} is {}, which is not done here", printable(content), key);
    }
    PARFAIT_CHECK_OK(add_token(std::string(content), id));
  }
  return Done{};
}

Result<Tokenizer> TokenizerLoader::finish() {
  std::ranges::stable_sort(
      t_.added_, [](const auto& a, const auto& b) { return a.text.size() > b.text.size(); });
  for (std::uint32_t i = 0; i < t_.added_.size(); ++i)
    t_.added_by_byte_[static_cast<unsigned char>(t_.added_[i].text[0])].push_back(i);
  return std::move(t_);
}

Result<Tokenizer> TokenizerLoader::from_json() {
  PARFAIT_TRY(const std::string text, read_text(path_));
  PARFAIT_TRY(const dom::element root, parse(text));
  PARFAIT_CHECK_OK(check_settings(root));
  dom::element vocabulary, merges;
  if (root["model"]["vocab"].get(vocabulary)) return bad("there is no vocabulary");
  if (root["model"]["merges"].get(merges)) return bad("there are no merges");
  PARFAIT_CHECK_OK(read_vocabulary(vocabulary));
  PARFAIT_CHECK_OK(read_merges(merges));
  PARFAIT_CHECK_OK(read_added(root));
  return finish();
}

Result<Tokenizer> TokenizerLoader::from_vocabulary() {
  PARFAIT_TRY(const std::string text, read_text(path_));
  PARFAIT_TRY(const dom::element root, parse(text));
  PARFAIT_CHECK_OK(read_vocabulary(root));
  const std::int64_t first = static_cast<std::int64_t>(t_.size_);
  PARFAIT_TRY(const std::string merges, read_text(path_.parent_path() / "merges.txt"));
  std::size_t begin = 0;
  while (begin < merges.size()) {
    const std::size_t end = std::min(merges.find('\n', begin), merges.size());
    std::string_view line(merges.data() + begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) {
      const std::size_t space = line.find(' ');
      if (space == std::string_view::npos) return bad("the merge {} is no pair", printable(line));
      PARFAIT_CHECK_OK(add_merge(line.substr(0, space), line.substr(space + 1)));
    }
    begin = end + 1;
  }
  if (first != qwen_vocabulary)
    return bad(
        "has {} tokens, where Qwen's vocab.json has {}: which tokens were added to it is not "
        "known without a tokenizer.json",
        first, qwen_vocabulary);
  std::int64_t id = first;
  for (const char* token : qwen_added) PARFAIT_CHECK_OK(add_token(token, id++));
  return finish();
}

Result<Tokenizer> Tokenizer::open(const fs::path& path) {
  std::error_code ignored;
  fs::path file = path;
  if (fs::is_directory(path, ignored)) {
    file = path / "tokenizer.json";
    if (!fs::exists(file, ignored)) file = path / "vocab.json";
    if (!fs::exists(file, ignored))
      return make_error(ErrorCode::file_not_found, "{}: has no tokenizer.json and no vocab.json",
                        printable(path.string(), 1000));
  }
  TokenizerLoader loader(file);
  return file.filename() == "vocab.json" ? loader.from_vocabulary() : loader.from_json();
}

}  // namespace parfait::pipeline
