#include "pipeline/tokenizer/tokenizer.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>
#include <queue>

#include "base/result.h"
#include "pipeline/tokenizer/pre_tokenizer.h"

namespace parfait::pipeline {
namespace {

struct Free {
  void operator()(utf8proc_uint8_t* p) const { std::free(p); }
};

// Where text stops being UTF-8, or its length.
std::size_t valid_length(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    utf8proc_int32_t c = 0;
    const auto length =
        utf8proc_iterate(bytes + at, static_cast<utf8proc_ssize_t>(text.size() - at), &c);
    if (length <= 0) break;
    at += static_cast<std::size_t>(length);
  }
  return at;
}

// Canonical composition of valid UTF-8.
std::string to_nfc(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, Free> owner(out);
  if (length < 0) return std::string(text);  // out of memory, or a code point it does not know
  return std::string(reinterpret_cast<const char*>(out), static_cast<std::size_t>(length));
}

}  // namespace

Result<std::vector<std::int64_t>> Tokenizer::encode(std::string_view text) const {
  constexpr std::size_t most = 64 << 20;
  if (text.size() > most)
    return make_error(ErrorCode::tokenizer, "a text of {} is too long to be a prompt",
                      bytes_text(text.size()));
  if (const std::size_t valid = valid_length(text); valid != text.size())
    return make_error(ErrorCode::tokenizer, "the prompt is not UTF-8 from byte {} on", valid);
  std::vector<std::int64_t> ids;
  std::size_t begin = 0;  // of the text since the last added token
  for (std::size_t at = 0; at < text.size();) {
    const Added* found = nullptr;
    for (std::uint32_t i : added_by_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(added_[i].text)) {
        found = &added_[i];
        break;
      }
    if (!found) {
      ++at;
      continue;
    }
    encode_part(text.substr(begin, at - begin), ids);
    ids.push_back(found->id);
    at += found->text.size();
    begin = at;
  }
  encode_part(text.substr(begin), ids);
  return ids;
}

void Tokenizer::encode_part(std::string_view text, std::vector<std::int64_t>& ids) const {
  if (text.empty()) return;
  const std::string composed = to_nfc(text);
  for (std::string_view piece : pre_tokenize(composed)) merge_piece(piece, ids);
}

// The pair of the lowest rank is merged first, the leftmost of equals.
void Tokenizer::merge_piece(std::string_view piece, std::vector<std::int64_t>& ids) const {
  constexpr std::uint32_t none = UINT32_MAX;
  struct Symbol {
    std::uint32_t id, previous, next;
  };
  struct Candidate {
    std::uint32_t rank, left, left_id, right_id, merged;
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };
  const auto count = static_cast<std::uint32_t>(piece.size());
  std::vector<Symbol> symbols(count);
  for (std::uint32_t i = 0; i < count; ++i)
    symbols[i] = {bytes_[static_cast<unsigned char>(piece[i])], i == 0 ? none : i - 1,
                  i + 1 == count ? none : i + 1};
  std::priority_queue<Candidate> queue;
  const auto consider = [&](std::uint32_t left) {
    if (left == none || symbols[left].next == none) return;
    const std::uint32_t a = symbols[left].id, b = symbols[symbols[left].next].id;
    const auto it = merges_.find(std::uint64_t{a} << 32 | b);
    if (it != merges_.end()) queue.push({it->second.rank, left, a, b, it->second.id});
  };
  for (std::uint32_t i = 0; i + 1 < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    // Stale where either side has been merged meanwhile.
    if (left.id != best.left_id || left.next == none || symbols[left.next].id != best.right_id)
      continue;
    Symbol& right = symbols[left.next];
    left.id = best.merged;
    left.next = right.next;
    right.id = none;
    if (left.next != none) symbols[left.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }
  for (const Symbol& symbol : symbols)
    if (symbol.id != none) ids.push_back(symbol.id);
}

std::optional<std::int64_t> Tokenizer::id(std::string_view token) const {
  for (const Added& added : added_)
    if (added.text == token) return added.id;
  const auto it = ids_.find(std::string(token));
  if (it == ids_.end()) return {};
  return it->second;
}

}  // namespace parfait::pipeline
