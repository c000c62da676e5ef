// Verifying: two files in the order of the first, each pair of weights in panels of rows that the
// threads share.

#include "parfait/verify.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>

#include "base/checked.h"
#include "base/result.h"
#include "base/text.h"
#include "convert/value_errors.h"
#include "convert/verify_units.h"
#include "runtime/threads.h"

namespace parfait {
namespace convert {
namespace {

// What bell-shaped weights lose in each format by a plain encoder, with room for layers that have
// outliers. The page says what was measured.
struct UsualError {
  std::string_view format;
  double relative_l2;
};
constexpr UsualError usual_errors[] = {
    {"f32", 1e-6},
    {"f16", 1e-3},
    {"bf16", 4e-3},
    {"int8_tensorwise", 0.04},
    {"convrot_w4a4", 0.25},
    {"asym_w4a8_int8", 0.15},
    {"w6a8_int8", 0.05},
    {"nvfp4", 0.15},
    {"mxfp8", 0.05},
    {"float8_e4m3fn", 0.05},
    {"float8_e5m2", 0.1},
    {"awq_w4a16", 0.15},
    // Dtypes of plain tensors.
    {"F32", 1e-6},
    {"F16", 1e-3},
    {"BF16", 4e-3},
    {"F8_E4M3", 0.05},
    {"F8_E5M2", 0.1},
};

constexpr std::uint64_t panel_values = 32 << 10;  // decoded at a time by a thread
constexpr std::uint64_t panels_at_once = 512;     // between two calls of the callback
constexpr std::uint64_t compare_bytes = 1 << 20;

struct Pair {
  const ComparedUnit *a = nullptr, *b = nullptr;
};

class Verifier {
 public:
  Verifier(const Checkpoint& a, const Checkpoint& b, const VerifyOptions& options)
      : a_(*a.state()),
        b_(*b.state()),
        options_(options),
        units_a_(units_of(a_)),
        units_b_(units_of(b_)),
        threads_(options.threads),
        scratch_(threads_.count()) {}

  Result<VerifyReport> run() {
    const std::vector<Pair> pairs = pair_up();
    if (pairs.empty()) return no_match();
    for (const Pair& pair : pairs) progress_.total += bytes_of(pair);
    for (const Pair& pair : pairs) {
      PARFAIT_CHECK_OK(advance((pair.a ? pair.a : pair.b)->name, 0));
      PARFAIT_TRY(LayerError error, compare(pair));
      report_.exceeding += error.exceeds();
      report_.layers.push_back(std::move(error));
    }
    PARFAIT_CHECK_OK(advance("", 0));
    report_.relative_l2 = total_.relative();
    std::ranges::stable_sort(report_.layers, [](const LayerError& x, const LayerError& y) {
      return badness(x) > badness(y);
    });
    return std::move(report_);
  }

 private:
  // How far beyond its limit.
  static double badness(const LayerError& error) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    if (error.comparison != Comparison::compared || error.not_finite > 0) return infinite;
    if (error.relative_l2 == 0) return 0;
    return error.limit > 0 ? error.relative_l2 / error.limit : infinite;
  }

  bool wanted(const ComparedUnit& unit) const {
    return glob_match(options_.pattern, unit.name) ||
           glob_match(options_.pattern, bare_name(unit.name));
  }

  // By the name of the tensor, or else without the prefix of whole models; in a's order, what only
  // b has at the end.
  std::vector<Pair> pair_up() const {
    std::unordered_map<std::string_view, std::size_t> exact, bare;
    for (std::size_t i = 0; i < units_b_.size(); ++i) {
      exact.emplace(units_b_[i].tensor->name, i);
      bare.emplace(bare_name(units_b_[i].tensor->name), i);
    }
    std::vector<char> taken(units_b_.size());
    std::vector<Pair> all;
    for (const ComparedUnit& unit : units_a_) {
      const auto it = exact.find(unit.tensor->name);
      all.push_back({&unit, it == exact.end() ? nullptr : &units_b_[it->second]});
      if (it != exact.end()) taken[it->second] = 1;
    }
    for (Pair& pair : all) {
      if (pair.b) continue;
      const auto it = bare.find(bare_name(pair.a->tensor->name));
      if (it == bare.end() || taken[it->second]) continue;
      taken[it->second] = 1;
      pair.b = &units_b_[it->second];
    }
    for (std::size_t i = 0; i < units_b_.size(); ++i)
      if (!taken[i]) all.push_back({nullptr, &units_b_[i]});
    std::erase_if(all, [&](const Pair& pair) {
      return !(pair.a && wanted(*pair.a)) && !(pair.b && wanted(*pair.b));
    });
    return all;
  }

  Error no_match() const {
    std::vector<std::string_view> names;
    for (const ComparedUnit& unit : units_a_) names.push_back(unit.name);
    const std::string nearest = nearest_name(options_.pattern, names);
    return make_error(
        ErrorCode::layer_not_found, "no layer or tensor of either file matches {}{}",
        printable(options_.pattern),
        nearest.empty() ? "" : fmt::format("; the nearest is {}", printable(nearest)));
  }

  static std::uint64_t bytes_of(const Pair& pair) {
    return (pair.a ? pair.a->stored_bytes() : 0) + (pair.b ? pair.b->stored_bytes() : 0);
  }

  Result<Done> advance(std::string_view what, std::uint64_t bytes) {
    if (!what.empty()) progress_.what = what;
    progress_.done += bytes;
    if (options_.progress && !options_.progress(progress_))
      return make_error(ErrorCode::cancelled, "the comparison was cancelled");
    return Done{};
  }

  double limit_of(const Pair& pair) const {
    if (options_.threshold) return *options_.threshold;
    // What is stored as the same numbers should be the same numbers.
    if (pair.a->is_plain() && pair.b->is_plain() && pair.a->tensor->dtype == pair.b->tensor->dtype)
      return 0;
    return usual_error(pair.b->format()) + (pair.a->is_plain() ? 0 : usual_error(pair.a->format()));
  }

  Result<LayerError> compare(const Pair& pair) {
    LayerError error;
    const ComparedUnit& first = pair.a ? *pair.a : *pair.b;
    error.name = first.name;
    if (pair.a) error.a = pair.a->format(), error.a_shape = shape_text(pair.a->shape);
    if (pair.b) error.b = pair.b->format(), error.b_shape = shape_text(pair.b->shape);
    const std::uint64_t bytes = bytes_of(pair);
    if (!pair.a || !pair.b) {
      error.comparison = pair.a ? Comparison::only_in_a : Comparison::only_in_b;
      PARFAIT_CHECK_OK(advance("", bytes));
      return error;
    }
    const ComparedUnit &a = *pair.a, &b = *pair.b;
    if (b.name != a.name) error.b_name = b.name;
    error.limit = limit_of(pair);
    if (a.shape != b.shape || !is_comparable(a, b)) {
      error.a_shape += fmt::format(" {}", error.a);
      error.b_shape += fmt::format(" {}", error.b);
      error.comparison = Comparison::shape;
      PARFAIT_CHECK_OK(advance("", bytes));
      return error;
    }
    error.values = checked_product(a.shape).value_or(0);
    report_.values += error.values;
    report_.bytes += bytes;
    PARFAIT_TRY(const UnitData data_a, UnitData::read(a_, a));
    PARFAIT_TRY(const UnitData data_b, UnitData::read(b_, b));
    ValueErrors sums;
    if (!is_same(a, b, data_a, data_b)) {
      PARFAIT_TRY(sums, a.is_float() && b.is_float() ? panels(a, b, data_a, data_b, bytes)
                                                     : numbers(a, data_a, data_b));
    } else {
      PARFAIT_CHECK_OK(advance("", bytes));
    }
    drop(a_, a);
    drop(b_, b);
    total_.add(sums);
    error.relative_l2 = sums.relative();
    error.max_error = sums.largest;
    error.not_finite = sums.not_finite;
    return error;
  }

  static bool is_comparable(const ComparedUnit& a, const ComparedUnit& b) {
    if (a.is_opaque() || b.is_opaque())
      return a.tensor->dtype == b.tensor->dtype && !a.layer && !b.layer;
    return (!a.layer && !b.layer) || (a.is_float() && b.is_float());
  }

  static void drop(const formats::Checkpoint& file, const ComparedUnit& unit) {
    if (!unit.layer) return file.index->drop(*unit.tensor);
    for (const formats::Part& part : unit.layer->parts) file.index->drop(*part.tensor);
  }

  // Whether both are the same bytes and mean the same, so that nothing need be decoded.
  bool is_same(const ComparedUnit& a, const ComparedUnit& b, const UnitData& data_a,
               const UnitData& data_b) {
    if (!a.layer && !b.layer)
      return a.tensor->dtype == b.tensor->dtype && same_bytes(data_a.bytes(), data_b.bytes());
    if (!a.layer || !b.layer || a.layer->format != b.layer->format ||
        a.layer->rotate_group != b.layer->rotate_group ||
        a.layer->scale_group != b.layer->scale_group)
      return false;
    const formats::LayerData &x = data_a.parts(), &y = data_b.parts();
    const auto counts = [](const formats::Part& part) {
      return part.role != "comfy_quant" && part.role != "bias" && part.role != "input_scale";
    };
    for (std::size_t i = 0; i < b.layer->parts.size(); ++i)
      if (counts(b.layer->parts[i]) && !a.layer->part(b.layer->parts[i].role)) return false;
    for (std::size_t i = 0; i < a.layer->parts.size(); ++i) {
      const formats::Part& part = a.layer->parts[i];
      if (!counts(part)) continue;
      const TensorInfo* other = b.layer->part(part.role);
      if (!other || other->dtype != part.tensor->dtype || !same_bytes(x.data[i], y.part(part.role)))
        return false;
    }
    return true;
  }

  bool same_bytes(ByteSpan a, ByteSpan b) {
    if (a.size() != b.size()) return false;
    std::atomic<bool> same = true;
    threads_.run(ceil_div(a.size(), compare_bytes), [&](std::uint64_t piece, unsigned) {
      const std::size_t at = piece * compare_bytes, size = std::min(compare_bytes, a.size() - at);
      if (same && std::memcmp(a.data() + at, b.data() + at, size) != 0) same = false;
    });
    return same;
  }

  // Panels of rows, of whichever of the two is a layer. Sums are joined in the panels' order.
  Result<ValueErrors> panels(const ComparedUnit& a, const ComparedUnit& b, const UnitData& data_a,
                             const UnitData& data_b, std::uint64_t bytes) {
    const ComparedUnit& shaped = a.layer ? a : b;
    const std::uint64_t rows = shaped.rows, columns = shaped.columns;
    const std::uint64_t panel = std::clamp<std::uint64_t>(
        panel_values / std::max<std::uint64_t>(columns, 1), 1, std::max<std::uint64_t>(rows, 1));
    const std::uint64_t count = ceil_div(rows, panel);
    // A tensor beside a layer has rows of one value.
    const std::uint64_t scale_a = columns / a.columns, scale_b = columns / b.columns;
    ValueErrors total;
    std::uint64_t reported = 0;
    for (std::uint64_t first = 0; first < count; first += panels_at_once) {
      const std::uint64_t now = std::min(panels_at_once, count - first);
      sums_.assign(now, {});
      threads_.run(now, [&](std::uint64_t piece, unsigned thread) {
        const std::uint64_t row = (first + piece) * panel, mine = std::min(panel, rows - row);
        std::vector<float>& values = scratch_[thread];
        values.resize(2 * mine * columns);
        float *x = values.data(), *y = x + mine * columns;
        data_a.decode(row * scale_a, mine * scale_a, x);
        data_b.decode(row * scale_b, mine * scale_b, y);
        sums_[piece].add({x, mine * columns}, {y, mine * columns});
      });
      for (const ValueErrors& sums : sums_) total.add(sums);
      const std::uint64_t done =
          static_cast<std::uint64_t>(static_cast<double>(bytes) * static_cast<double>(first + now) /
                                     static_cast<double>(count));
      PARFAIT_CHECK_OK(advance("", done - reported));
      reported = done;
    }
    return total;
  }

  // Integers, doubles, and bytes that are not looked into.
  Result<ValueErrors> numbers(const ComparedUnit& a, const UnitData& data_a,
                              const UnitData& data_b) {
    const std::uint64_t count =
        a.is_opaque() ? data_a.bytes().size() : checked_product(a.shape).value_or(0);
    ValueErrors sums;
    for (std::uint64_t i = 0; i < count; ++i) {
      sums.add_value(data_a.value(i), data_b.value(i));
      if (i % (1 << 20) == 0) PARFAIT_CHECK_OK(advance("", 0));
    }
    PARFAIT_CHECK_OK(advance("", data_a.bytes().size() + data_b.bytes().size()));
    return sums;
  }

  const formats::Checkpoint &a_, &b_;
  const VerifyOptions& options_;
  const std::vector<ComparedUnit> units_a_, units_b_;
  runtime::Threads threads_;
  std::vector<std::vector<float>> scratch_;  // by thread
  std::vector<ValueErrors> sums_;            // by panel
  ValueErrors total_;
  VerifyReport report_;
  Progress progress_;
};

}  // namespace
}  // namespace convert

std::string_view comparison_name(Comparison comparison) {
  constexpr std::string_view names[] = {"compared", "only in a", "only in b", "shape"};
  return names[static_cast<int>(comparison)];
}

double LayerError::sqnr_db() const { return -20 * std::log10(relative_l2); }

double usual_error(std::string_view format) {
  for (const convert::UsualError& usual : convert::usual_errors)
    if (usual.format == format) return usual.relative_l2;
  return 0;  // whole numbers, say
}

Result<VerifyReport> verify(const CheckedCheckpoint& a, const CheckedCheckpoint& b,
                            const VerifyOptions& options) {
  return convert::Verifier(a.checkpoint(), b.checkpoint(), options).run();
}

}  // namespace parfait
