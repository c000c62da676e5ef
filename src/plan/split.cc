#include "plan/split.h"

#include <numeric>

#include "base/result.h"

namespace parfait::plan {
namespace {

// Adds a range to a rank's share, joined with the one before if they touch.
void add_range(std::vector<Range>& share, Range range) {
  if (!share.empty() && share.back().end == range.begin)
    share.back().end = range.end;
  else
    share.push_back(range);
}

// Each has its own ranges on each rank.
constexpr std::uint64_t most_experts = 4096;

class Splitter {
 public:
  Splitter(const formats::Layer& layer, const TpRule& rule, const PlanOptions& options)
      : layer_(layer),
        rule_(rule),
        options_(options),
        format_rule_(layer.format->split(layer)),
        outputs_(rule.axis == NaturalAxis::outputs),
        length_(outputs_ ? layer.rows : layer.columns),
        granularity_(outputs_ ? format_rule_.rows : format_rule_.columns),
        axis_name_(outputs_ ? "rows" : "columns") {}

  Split split() {
    if (granularity_ == 0)
      return refuse(fmt::format("cannot be cut along its {}: {}", axis_name_, format_rule_.why));
    const std::uint64_t sum =
        std::accumulate(rule_.parts.begin(), rule_.parts.end(), std::uint64_t{0});
    // The outputs of several experts lie one behind the other, and each expert is cut.
    const std::uint64_t experts = outputs_ ? layer_.experts : 1;
    const std::uint64_t length = length_ / experts;
    if (experts > most_experts)
      return refuse(fmt::format("{} experts in one tensor, more than {}", experts, most_experts));
    if (length % sum != 0)
      return refuse(fmt::format("{} {} do not divide into the fused parts {}", length, axis_name_,
                                fmt::join(rule_.parts, ":")));
    result_.axis = outputs_ ? SplitAxis::outputs : SplitAxis::inputs;
    result_.shares.resize(options_.ranks);
    std::uint64_t begin = 0;
    for (std::uint64_t expert = 0; expert < experts; ++expert) {
      for (std::uint64_t part : rule_.parts) {
        const std::uint64_t end = begin + length / sum * part;
        if (!split_part(begin, end)) return result_;
        begin = end;
      }
    }
    result_.reason =
        rule_.parts.size() > 1
            ? fmt::format("rule {}: {}, {} fused parts", rule_.pattern,
                          outputs_ ? "outputs" : "inputs", rule_.parts.size())
            : fmt::format("rule {}: {}", rule_.pattern, outputs_ ? "outputs" : "inputs");
    if (experts > 1) result_.reason += fmt::format(", of each of {} experts", experts);
    if (uneven_) result_.reason += fmt::format("; unevenly, at multiples of {}", granularity_);
    return result_;
  }

 private:
  Split refuse(std::string why) {
    result_ = {};
    result_.refused = true;
    result_.reason = std::move(why);
    return result_;
  }

  std::string granularity_text() const {
    return outputs_ || format_rule_.why.empty()
               ? fmt::format("{}", granularity_)
               : fmt::format("{} ({})", granularity_, format_rule_.why);
  }

  bool split_part(std::uint64_t begin, std::uint64_t end) {
    const std::uint64_t size = end - begin, ranks = options_.ranks;
    const bool even = size % ranks == 0 && size / ranks % granularity_ == 0 && size > 0;
    const std::uint64_t groups = size / granularity_;
    if (!even && (options_.unevenness == Unevenness::forbidden || size % granularity_ != 0 ||
                  groups < ranks)) {
      refuse(why_not(size, groups));
      return false;
    }
    uneven_ |= !even;
    std::uint64_t at = begin;
    for (std::uint64_t rank = 0; rank < ranks; ++rank) {
      const std::uint64_t mine = (groups / ranks + (rank < groups % ranks)) * granularity_;
      add_range(result_.shares[rank], {at, at + mine});
      at += mine;
    }
    return true;
  }

  std::string why_not(std::uint64_t size, std::uint64_t groups) const {
    if (size % granularity_ == 0 && groups < options_.ranks)
      return fmt::format("{} {} are {} groups of {}, fewer than {} ranks", size, axis_name_, groups,
                         granularity_text(), options_.ranks);
    if (size % options_.ranks != 0)
      return fmt::format("{} {} do not divide by {} ranks", size, axis_name_, options_.ranks);
    return fmt::format("{} {} over {} ranks are {}, not a multiple of {}", size, axis_name_,
                       options_.ranks, size / options_.ranks, granularity_text());
  }

  const formats::Layer& layer_;
  const TpRule& rule_;
  const PlanOptions& options_;
  const formats::SplitRule format_rule_;
  const bool outputs_;
  const std::uint64_t length_, granularity_;
  const std::string_view axis_name_;
  Split result_;
  bool uneven_ = false;
};

}  // namespace

Split split_layer(const formats::Layer& layer, const TpRule* rule, const PlanOptions& options) {
  Split split;
  if (options.ranks == 1) {
    split.axis = SplitAxis::whole;
    return split;
  }
  if (layer.kind == LayerKind::embedding)
    split.reason = "an embedding";
  else if (!rule)
    split.reason = "no rule names an axis";
  else if (rule->axis == NaturalAxis::replicate)
    split.reason = fmt::format("rule {}: replicate", rule->pattern);
  else
    return Splitter(layer, *rule, options).split();
  return split;
}

}  // namespace parfait::plan
