#include "plan/tp_rules.h"

#include <algorithm>
#include <charconv>

#include "base/result.h"
#include "base/text.h"
#include "parfait/plan.h"

namespace parfait {

std::string_view builtin_tp_rules() {
  return R"(# pattern                        axis       options
# What every rank needs whole: modulation, embedders, the last layer, vision towers.
*visual.*                        replicate
*vision*                         replicate
*adaln*                          replicate
*adaLN*                          replicate
*modulation*                     replicate
*.img_mod.*                      replicate
*.txt_mod.*                      replicate
*embed_tokens                    replicate
*embeddings*                     replicate
*final_layer.*                   replicate

# MiniMax-H3: fused q, k, v of equal width; fc1 is [gate; up].
*.attn.qkv_proj                  outputs    parts=1,1,1
*.attn.out_proj                  inputs
*.mlp.fc1                        outputs    parts=1,1
*.mlp.fc2                        inputs

# FLUX and FLUX.2. FLUX.2's mlp.0 is [gate; up] (6 wide), FLUX.1's is not gated (4 wide), and their
# single blocks fuse q, k, v with the first MLP layer, and attention with the second one's input.
*.img_attn.qkv                   outputs    parts=1,1,1
*.txt_attn.qkv                   outputs    parts=1,1,1
*.img_attn.proj                  inputs
*.txt_attn.proj                  inputs
*.img_mlp.0                      outputs    parts=1,1        rows=6*columns
*.txt_mlp.0                      outputs    parts=1,1        rows=6*columns
*.img_mlp.0                      outputs
*.txt_mlp.0                      outputs
*.img_mlp.2                      inputs
*.txt_mlp.2                      inputs
*single_blocks.*.linear1         outputs    parts=1,1,1,3,3  rows=9*columns
*single_blocks.*.linear1         outputs    parts=1,1,1,4    rows=7*columns
*single_blocks.*.linear2         inputs     parts=1,3        columns=4*rows
*single_blocks.*.linear2         inputs     parts=1,4        columns=5*rows

# Z-Image (Lumina names).
*.attention.qkv                  outputs    parts=1,1,1
*.attention.out                  inputs
*.feed_forward.w1                outputs
*.feed_forward.w3                outputs
*.feed_forward.w2                inputs

# diffusers names; the Qwen-Image adapter's fused gate_up. ff.net.0.proj is one part: where it is
# gated (MiniMax-H3), give a rule with parts=1,1 of your own.
*.to_q                           outputs
*.to_k                           outputs
*.to_v                           outputs
*.add_q_proj                     outputs
*.add_k_proj                     outputs
*.add_v_proj                     outputs
*.to_out.0                       inputs
*.to_out                         inputs
*.to_add_out                     inputs
*.ff.net.0.proj                  outputs
*.ff.net.2                       inputs
*.img_mlp.gate_up                outputs    parts=1,1
*.img_mlp.out                    inputs
*.mlp.gate_up                    outputs    parts=1,1

# Language models used as text encoders, Krea 2, Wan.
*.q_proj                         outputs
*.k_proj                         outputs
*.v_proj                         outputs
*.o_proj                         inputs
*.gate_proj                      outputs
*.up_proj                        outputs
*.down_proj                      inputs
*.attn.wq                        outputs
*.attn.wk                        outputs
*.attn.wv                        outputs
*.attn.wo                        inputs
*.attn.gate                      outputs
*.mlp.gate                       outputs
*.mlp.up                         outputs
*.mlp.down                       inputs
*_attn.q                         outputs
*_attn.k                         outputs
*_attn.v                         outputs
*_attn.o                         inputs
*.ffn.0                          outputs
*.ffn.2                          inputs

# BERT names.
*.attention.self.query           outputs
*.attention.self.key             outputs
*.attention.self.value           outputs
*.attention.output.dense         inputs
*.intermediate.dense             outputs
*.output.dense                   inputs
)";
}

namespace plan {
namespace {

// The words of a line, its comment cut off.
std::vector<std::string_view> words_of(std::string_view line) {
  line = line.substr(0, line.find('#'));
  std::vector<std::string_view> words;
  constexpr std::string_view space = " \t\r";
  for (std::size_t begin = line.find_first_not_of(space); begin != std::string_view::npos;) {
    const std::size_t end = std::min(line.find_first_of(space, begin), line.size());
    words.push_back(line.substr(begin, end - begin));
    begin = line.find_first_not_of(space, end);
  }
  return words;
}

// A whole number from 1 to 4096; 0 for anything else.
std::uint64_t small_number(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value <= 4096 ? value : 0;
}

Error bad_line(unsigned line, std::string_view what) {
  return make_error(ErrorCode::plan_rules, "tensor-parallel rules, line {}: {}", line, what);
}

Result<Done> parse_option(std::string_view word, TpRule& rule) {
  const auto after = [&](std::string_view start, std::string_view end) -> std::string_view {
    if (!word.starts_with(start) || !word.ends_with(end) || word.size() < start.size() + end.size())
      return {};
    return word.substr(start.size(), word.size() - start.size() - end.size());
  };
  if (word.starts_with("parts=")) {
    rule.parts.clear();
    std::string_view list = word.substr(6);
    while (true) {
      const std::size_t comma = std::min(list.find(','), list.size());
      const std::uint64_t part = small_number(list.substr(0, comma));
      if (part == 0 || rule.parts.size() == 64)
        return bad_line(
            rule.line,
            fmt::format("\"{}\" is not a list of whole numbers from 1 to 4096", printable(word)));
      rule.parts.push_back(part);
      if (comma == list.size()) return Done{};
      list = list.substr(comma + 1);
    }
  }
  if ((rule.rows_by_columns = small_number(after("rows=", "*columns")))) return Done{};
  if ((rule.columns_by_rows = small_number(after("columns=", "*rows")))) return Done{};
  return bad_line(rule.line,
                  fmt::format("\"{}\" is none of parts=a,b,..., rows=F*columns, columns=F*rows",
                              printable(word)));
}

}  // namespace

bool TpRule::matches(std::string_view name, std::uint64_t rows, std::uint64_t columns) const {
  if (rows_by_columns && (columns == 0 || rows / columns != rows_by_columns || rows % columns))
    return false;
  if (columns_by_rows && (rows == 0 || columns / rows != columns_by_rows || columns % rows))
    return false;
  return glob_match(pattern, name) ||
         (pattern.starts_with("*.") && glob_match(std::string_view(pattern).substr(2), name));
}

Result<std::vector<TpRule>> parse_tp_rules(std::string_view text) {
  std::vector<TpRule> rules;
  unsigned number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(begin, end - begin));
    begin = end + 1;
    ++number;
    if (words.empty()) continue;
    TpRule rule;
    rule.line = number;
    rule.pattern = words[0];
    const std::string_view axis = words.size() > 1 ? words[1] : "";
    if (axis == "outputs")
      rule.axis = NaturalAxis::outputs;
    else if (axis == "inputs")
      rule.axis = NaturalAxis::inputs;
    else if (axis != "replicate")
      return bad_line(number,
                      fmt::format("\"{}\" is none of outputs, inputs, replicate", printable(axis)));
    for (std::size_t i = 2; i < words.size(); ++i) PARFAIT_CHECK_OK(parse_option(words[i], rule));
    rules.push_back(std::move(rule));
    if (rules.size() > 10'000) return bad_line(number, "more than 10000 rules");
  }
  return rules;
}

}  // namespace plan
}  // namespace parfait
