// What weights prove about their rotation.
//
// The inputs of a trained layer are unlike: some columns of W have far more energy than others. The
// Hadamard rotation spreads each over its whole group, so a rotated weight's columns are alike, up
// to chance. Let C be the columns' covariance within a window of columns, each row counting alike,
// and C(G) the same once the weight is rotated by G (C itself, for G = 1). Let D(G) be how far
// C(G)'s diagonal is from even: the squared coefficient of variation of the columns' energies. The
// rotation is its own inverse, so D is largest at the G by which the weight was rotated, and at 1
// where it was not. By chance alone, N rows give D = 2/N.
//
// D(G) is part of what sets C apart from a multiple of the unit matrix, T, which no rotation
// changes; in a basis that has nothing to do with the weight, D is about 2/n of T for a window of n
// columns. So the largest D is a proof only if it stands far above chance, above every other, and
// is a good share of T: columns that are merely alike to their neighbours give a large T, and then
// a D that is large by itself but not beside it. Two halves of the rows must give the same answer.

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <vector>

#include "base/hadamard.h"
#include "base/result.h"
#include "convert/repair_mends.h"
#include "formats/common.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/owners.h"
#include "runtime/layer_rows.h"

namespace parfait::convert {
namespace {

constexpr std::uint32_t groups[] = {1, 16, 64, 256};
constexpr std::uint64_t least_rows = 32, most_rows = 1024;
constexpr double above_chance = 20, above_others = 2;

constexpr double least_share = 0.1;
constexpr std::uint64_t most_windows = 8;

// Covariances of some windows of columns, of the rows that were added.
class Spread {
 public:
  explicit Spread(std::uint64_t columns) {
    for (std::uint32_t group : groups)
      if (columns % group == 0) window_ = group;
    const std::uint64_t windows = columns / window_, taken = std::min(windows, most_windows);
    for (std::uint64_t i = 0; i < taken; ++i) starts_.push_back(i * windows / taken * window_);
    sums_.resize(taken * window_ * window_);
  }

  void add(const std::vector<float>& row) {
    double energy = 0;
    for (float value : row) energy += double{value} * value;
    if (energy == 0) return;
    ++rows_;
    const auto scale = static_cast<float>(1 / std::sqrt(energy));
    std::vector<float> x(window_);
    for (std::size_t w = 0; w < starts_.size(); ++w) {
      for (std::size_t k = 0; k < window_; ++k) x[k] = row[starts_[w] + k] * scale;
      float* sums = sums_.data() + w * window_ * window_;
      for (std::size_t i = 0; i < window_; ++i)
        for (std::size_t k = 0; k < window_; ++k) sums[i * window_ + k] += x[i] * x[k];
    }
  }

  struct Answer {
    bool proven = false;
    std::uint32_t group = 0;  // 1: not rotated
    double best = 0, next = 0, chance = 0, share = 0;
  };
  Answer answer() const {
    Answer out;
    if (rows_ < least_rows / 2 || window_ < 16) return out;
    const auto n = static_cast<double>(window_);
    out.chance = 2.0 / static_cast<double>(rows_);
    for (std::uint32_t group : groups) {
      if (group > window_) continue;
      const double d = diagonal_spread(group);
      if (d > out.best) {
        out.next = out.best;
        out.best = d;
        out.group = group;
      } else {
        out.next = std::max(out.next, d);
      }
    }
    // T, less what chance gives it.
    double squares = 0, even = 0;
    for (std::size_t w = 0; w < starts_.size(); ++w) {
      double all = 0, trace = 0;
      for (std::size_t i = 0; i < window_ * window_; ++i) all += double{at(w)[i]} * at(w)[i];
      for (std::size_t i = 0; i < window_; ++i) trace += at(w)[i * window_ + i];
      squares += all - trace * trace / n - trace * trace / static_cast<double>(rows_);
      even += trace * trace / n;
    }
    const double total = even > 0 ? squares / even : 0;
    out.share = (out.best - out.chance) / std::max(total, out.best);
    out.proven = out.best > above_chance * out.chance && out.best > above_others * out.next &&
                 out.share > least_share;
    return out;
  }

 private:
  const float* at(std::size_t w) const { return sums_.data() + w * window_ * window_; }

  double diagonal_spread(std::uint32_t group) const {
    double squares = 0, even = 0;
    std::vector<float> turned(window_ * window_), column(window_);
    for (std::size_t w = 0; w < starts_.size(); ++w) {
      turned.assign(at(w), at(w) + window_ * window_);
      double trace = 0, diagonal = 0;
      if (group > 1) rotate_groups(turned, group);
      for (std::size_t k = 0; k < window_; ++k) {
        for (std::size_t i = 0; i < window_; ++i) column[i] = turned[i * window_ + k];
        if (group > 1) rotate_groups(column, group);
        trace += column[k];
        diagonal += double{column[k]} * column[k];
      }
      squares += diagonal - trace * trace / static_cast<double>(window_);
      even += trace * trace / static_cast<double>(window_);
    }
    return even > 0 ? squares / even : 0;
  }

  std::uint32_t window_ = 1;
  std::vector<std::uint64_t> starts_;
  std::vector<float> sums_;
  std::uint64_t rows_ = 0;
};

// Which packing the bytes can be. Writers scale each row to its largest code: ±127 of int8 (bf16
// roundings make it 126 to 128), ±7 of int4, where no writer makes -8.
struct Packing {
  bool int8 = true, int4 = true;
  void look(ByteSpan row) {
    unsigned largest8 = 0, largest4 = 0, any = 0;
    for (const std::byte b : row) {
      const auto code = static_cast<std::int8_t>(b);
      largest8 = std::max(largest8, static_cast<unsigned>(std::abs(int{code})));
      for (const unsigned nibble :
           {std::to_integer<unsigned>(b) & 15, std::to_integer<unsigned>(b) >> 4}) {
        largest4 = std::max(largest4, nibble < 8 ? nibble : 16 - nibble);
        any |= nibble;
      }
    }
    if (any == 0) return;
    int8 = int8 && largest8 >= 126;
    int4 = int4 && largest4 == 7;
  }
};

class Weigher {
 public:
  Weigher(const formats::Checkpoint& checkpoint, const ProgressCallback& progress, Proofs& proofs,
          Unproven& unproven)
      : checkpoint_(checkpoint),
        callback_(progress),
        proofs_(proofs),
        unproven_(unproven),
        owners_(*checkpoint.index) {}

  Result<Done> weigh() {
    std::vector<Candidate> candidates;
    for (const formats::Owner& owner : owners_.all()) collect(owner, candidates);
    PARFAIT_CHECK_OK(collect_open_groups(candidates));
    for (const Candidate& candidate : candidates) progress_.total += candidate.owner->weight->bytes;
    for (const Candidate& candidate : candidates) {
      progress_.what = candidate.owner->name;
      if (callback_ && !callback_(progress_))
        return make_error(ErrorCode::cancelled, "the repair was cancelled");
      if (candidate.ask == Ask::group) {
        PARFAIT_CHECK_OK(weigh_group(candidate));
      } else {
        PARFAIT_CHECK_OK(weigh(candidate));
      }
      progress_.done += candidate.owner->weight->bytes;
    }
    return Done{};
  }

 private:
  // Whether int8 codes are rotated at all, or by which group a layer is whose format says that it
  // is rotated.
  enum class Ask { rotation, group };
  struct Candidate {
    const formats::Owner* owner;
    const TensorInfo* scale;
    const formats::Layer* layer;  // null: nothing declares it
    Ask ask = Ask::rotation;
  };

  // Layers whose declaration leaves the rotation open: none, int8 without convrot.
  void collect(const formats::Owner& owner, std::vector<Candidate>& out) const {
    if (!owner.weight || owner.weight->dtype != DType::i8 || owner.weight->shape.size() != 2 ||
        owner.weight->bytes == 0)
      return;
    const formats::Evidence evidence{owner.name, owner.tensors, nullptr};
    const TensorInfo* scale = evidence.find("weight_scale");
    if (!scale ||
        (scale->dtype != DType::f32 && scale->dtype != DType::f16 && scale->dtype != DType::bf16))
      return;
    const std::uint64_t values = formats::value_count(*scale);
    if (values != 1 && values != owner.weight->shape[0]) return;
    const formats::Layer* layer = checkpoint_.find(owner.name);
    if (layer) {
      if (layer->format->name != "int8_tensorwise" || layer->rotate_group != 0) return;
    } else if (!formats::has_only(evidence, {"weight_scale", "input_scale"}) ||
               evidence.find("comfy_quant")) {
      return;
    }
    out.push_back({&owner, scale, layer});
  }

  // Layers that are rotated by 256 for no better reason than that it is the default, and can be
  // decoded.
  Result<Done> collect_open_groups(std::vector<Candidate>& out) const {
    std::unordered_set<std::string> open;
    for (const Finding& finding : checkpoint_.findings)
      if (finding.code == ErrorCode::marker_default && finding.got == "no convrot_groupsize")
        open.insert(finding.layer);
    if (open.empty()) return Done{};
    PARFAIT_TRY(const std::vector<Finding> findings, formats::check_layers(checkpoint_, {}));
    for (const Finding& finding : findings)
      if (finding.severity == Severity::error) open.erase(finding.layer);
    for (const formats::Owner& owner : owners_.all()) {
      const formats::Layer* layer = checkpoint_.find(owner.name);
      if (layer && owner.weight && owner.weight->bytes > 0 && layer->rotate_group != 0 &&
          open.contains(std::string(owner.name)))
        out.push_back({&owner, nullptr, layer, Ask::group});
    }
    return Done{};
  }

  Result<Done> weigh_group(const Candidate& candidate) {
    // Decoded as if it were not rotated, which gives the values as they are stored.
    formats::Layer stored = *candidate.layer;
    stored.rotate_group = 0;
    PARFAIT_TRY(runtime::LayerRows rows, runtime::LayerRows::open(checkpoint_, stored));
    Spread spreads[2] = {Spread(rows.columns()), Spread(rows.columns())};
    std::vector<float> values(rows.columns());
    const std::uint64_t step = std::max<std::uint64_t>(1, rows.rows() / most_rows);
    for (std::uint64_t row = 0, i = 0; row < rows.rows(); row += step, ++i) {
      Result<Done> read = rows.read(row, 1, values.data());
      if (!read.ok() && read.error().code == ErrorCode::data_not_finite) return Done{};
      PARFAIT_CHECK_OK(read);
      rows.drop(row, 1);
      spreads[i % 2].add(values);
    }
    // Where nothing is proven, what the header says is all there is: complete_declaration() or
    // unproven_rotation().
    const Spread::Answer a = spreads[0].answer(), b = spreads[1].answer();
    if (!a.proven || !b.proven || a.group != b.group) return Done{};
    if (a.group == 1) {
      if (candidate.layer->source != formats::Source::structure) contradict(candidate, a);
      return Done{};
    }
    proofs_.emplace(std::string(candidate.owner->name),
                    Proof{candidate.layer->format->name, a.group, why(a, a.group)});
    return Done{};
  }

  void contradict(const Candidate& candidate, const Spread::Answer& a) {
    Finding finding{ErrorCode::dialect_rotation};
    finding.severity = Severity::warning;
    finding.layer = candidate.owner->name;
    finding.tensor = candidate.owner->weight->name;
    finding.message =
        fmt::format("it is declared as rotated, but {}, as if it were not", why(a, 0));
    finding.file = checkpoint_.index->shards()[candidate.owner->weight->shard].reader->name();
    unproven_.push_back(std::move(finding));
  }

  static std::string alike(const Spread::Answer& a) {
    return fmt::format(
        "its columns are too much alike, or not alike in the same way in both halves of its rows "
        "({:.3g} at best, {:.3g} next, {:.3g} by chance, a share of {:.2f})",
        a.best, a.next, a.chance, a.share);
  }
  static std::string why(const Spread::Answer& a, std::uint32_t group) {
    return fmt::format(
        "its columns' energies vary by {:.3g} {}, by at most {:.3g} otherwise and by {:.3g} by "
        "chance",
        a.best,
        group == 0 ? "as they are stored" : fmt::format("when it is rotated back by {}", group),
        a.next, a.chance);
  }

  Result<Done> weigh(const Candidate& candidate) {
    const TensorInfo& weight = *candidate.owner->weight;
    const std::uint64_t rows = weight.shape[0], width = weight.shape[1];
    const std::uint64_t step = std::max<std::uint64_t>(1, rows / most_rows);
    Packing packing;
    Spread spreads[2][2] = {{Spread(width), Spread(width)}, {Spread(2 * width), Spread(2 * width)}};
    std::vector<float> values;
    std::vector<std::byte> scratch;
    for (std::uint64_t row = 0, i = 0; row < rows; row += step, ++i) {
      TensorInfo part = weight;
      part.offset += row * width;
      part.bytes = width;
      PARFAIT_TRY(const ByteSpan codes, checkpoint_.index->read(part, scratch));
      packing.look(codes);
      // Scales by row do not matter: each row counts alike.
      values.resize(width);
      for (std::uint64_t k = 0; k < width; ++k)
        values[k] = static_cast<float>(static_cast<std::int8_t>(codes[k]));
      spreads[0][i % 2].add(values);
      if (candidate.layer) continue;
      values.resize(2 * width);
      for (std::uint64_t k = 0; k < 2 * width; ++k)
        values[k] = static_cast<float>(int4_code(codes.data(), k));
      spreads[1][i % 2].add(values);
    }
    checkpoint_.index->drop(weight);
    judge(candidate, packing, spreads);
    return Done{};
  }

  void judge(const Candidate& candidate, const Packing& packing, const Spread (&spreads)[2][2]) {
    const bool by_row = formats::value_count(*candidate.scale) > 1;
    const bool int4 = !candidate.layer && by_row && packing.int4 && !packing.int8;
    if (!candidate.layer && !int4 && (packing.int4 || (by_row && !packing.int8)))
      return doubt(candidate, "its codes may be packed 4-bit ones or int8");
    const Spread::Answer a = spreads[int4][0].answer(), b = spreads[int4][1].answer();
    // Rotated weights have scales by row; packed ones are always rotated.
    const bool proven =
        a.proven && b.proven && a.group == b.group && (a.group == 1 ? !int4 : by_row);
    if (!proven) return doubt(candidate, alike(a));
    const std::uint32_t group = a.group == 1 ? 0 : a.group;
    if (candidate.layer && group == 0 && !has_open_flag(candidate)) return;  // as it is declared
    Proof proof;
    proof.format = int4 ? "convrot_w4a4" : "int8_tensorwise";
    proof.rotate_group = group;
    proof.why = why(a, group);
    proofs_.emplace(std::string(candidate.owner->name), std::move(proof));
  }

  // convrot_groupsize without convrot: a finding tells.
  bool has_open_flag(const Candidate& candidate) const {
    if (open_flags_.empty() && !open_flags_known_) {
      for (const Finding& finding : checkpoint_.findings)
        if (finding.code == ErrorCode::marker_ignored && finding.severity == Severity::warning)
          open_flags_.push_back(finding.layer);
      std::ranges::sort(open_flags_);
      open_flags_known_ = true;
    }
    return std::ranges::binary_search(open_flags_, candidate.owner->name);
  }

  void doubt(const Candidate& candidate, std::string_view why) {
    if (candidate.layer && !has_open_flag(candidate)) return;  // its declaration stands
    Finding finding{ErrorCode::dialect_undeclared_rotation};
    finding.severity = Severity::warning;
    finding.layer = candidate.owner->name;
    finding.tensor = candidate.owner->weight->name;
    finding.message = fmt::format("the weight was read and proves nothing: {}", why);
    finding.file = checkpoint_.index->shards()[candidate.owner->weight->shard].reader->name();
    unproven_.push_back(std::move(finding));
  }

  const formats::Checkpoint& checkpoint_;
  const ProgressCallback& callback_;
  Proofs& proofs_;
  Unproven& unproven_;
  formats::Owners owners_;
  Progress progress_;
  mutable std::vector<std::string> open_flags_;
  mutable bool open_flags_known_ = false;
};

}  // namespace

Result<Done> weigh(const formats::Checkpoint& checkpoint, const ProgressCallback& progress,
                   Proofs& proofs, Unproven& unproven) {
  return Weigher(checkpoint, progress, proofs, unproven).weigh();
}

}  // namespace parfait::convert
