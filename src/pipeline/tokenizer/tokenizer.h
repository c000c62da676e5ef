// Byte-level BPE of the Qwen family: text to token ids, as Hugging Face's `tokenizers` does it.
//
// Text is split at added tokens, normalised (NFC), cut by the pattern of pre_tokenizer.h, and each
// piece's bytes are merged by rank. Immutable; use it from any thread.
#ifndef PARFAIT_PIPELINE_TOKENIZER_TOKENIZER_H_
#define PARFAIT_PIPELINE_TOKENIZER_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "parfait/error.h"

namespace parfait::pipeline {

class Tokenizer {
 public:
  // tokenizer.json, a folder that holds it, or vocab.json (or its folder) with merges.txt beside
  // it. A tokenizer.json that asks for what is not done here is refused.
  static Result<Tokenizer> open(const std::filesystem::path& path);

  // Time is O(n log n) in the text's bytes.
  Result<std::vector<std::int64_t>> encode(std::string_view text) const;
  // The id of a token as the file spells it; of an added token, its text.
  std::optional<std::int64_t> id(std::string_view token) const;
  // One more than the largest id.
  std::uint64_t size() const { return size_; }

 private:
  friend class TokenizerLoader;
  struct Added {
    std::string text;
    std::int64_t id;
  };
  struct Merge {
    std::uint32_t rank, id;
  };

  void encode_part(std::string_view text, std::vector<std::int64_t>& ids) const;
  void merge_piece(std::string_view piece, std::vector<std::int64_t>& ids) const;

  std::unordered_map<std::string, std::uint32_t> ids_;  // vocabulary, as the file spells it
  std::array<std::uint32_t, 256> bytes_{};              // the id of each byte
  std::unordered_map<std::uint64_t, Merge> merges_;     // (left << 32 | right)
  std::vector<Added> added_;                            // by first byte, longest first
  std::array<std::vector<std::uint32_t>, 256> added_by_byte_;
  std::uint64_t size_ = 0;
};

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_TOKENIZER_TOKENIZER_H_
