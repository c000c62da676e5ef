// The pieces that byte-level BPE of the Qwen family works on.
//
//   (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?\p{L}+ | \p{N} | ?[^\s\p{L}\p{N}]+[\r\n]*
//   | \s*[\r\n]+ | \s+(?!\S) | \s+
//
// by hand, over code points with Unicode's general categories. As in the `tokenizers` package, \s
// is Unicode's White_Space, and 's has the long s (U+017F) too.
#ifndef PARFAIT_PIPELINE_TOKENIZER_PRE_TOKENIZER_H_
#define PARFAIT_PIPELINE_TOKENIZER_PRE_TOKENIZER_H_

#include <string_view>
#include <vector>

namespace parfait::pipeline {

// The pattern as tokenizer.json spells it.
extern const std::string_view qwen_pattern;

// text is valid UTF-8. The pieces cover it, in order.
std::vector<std::string_view> pre_tokenize(std::string_view text);

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_TOKENIZER_PRE_TOKENIZER_H_
