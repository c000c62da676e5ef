// A format for each layer by need: of the four integer formats, whichever lowers the whole file's
// error most for the bytes that it costs.
//
// The error of a layer in a format is that of a sample of its rows, encoded and decoded, times the
// rows that each stands for. A layer's choices that lie on the lower convex hull of (bytes, error)
// are taken up one step at a time, the step that saves most error a byte first, while it fits.

#include <algorithm>
#include <atomic>
#include <numeric>
#include <queue>

#include "base/result.h"
#include "convert/error_sums.h"
#include "convert/panels.h"
#include "convert/quantize_state.h"
#include "runtime/layer_rows.h"

namespace parfait::convert {
namespace {

constexpr std::string_view candidates[] = {"convrot_w4a4", "asym_w4a8_int8", "w6a8_int8",
                                           "int8_tensorwise"};
constexpr std::uint64_t sampled_values = 1 << 17;

struct Point {
  std::uint64_t bytes = 0;
  double error = 0;
  LayerTarget target;
};

// Rows of a layer, evenly spread.
struct Sample {
  formats::Layer layer;  // rows × columns of it, as a plain linear layer
  std::vector<float> values;
  double weight = 1;  // rows of the layer for each of the sample's
};

Result<Sample> take_sample(const formats::Checkpoint& source, const formats::Layer& layer) {
  PARFAIT_TRY(runtime::LayerRows rows, runtime::LayerRows::open(source, layer));
  const std::uint64_t count = std::clamp<std::uint64_t>(
      sampled_values / std::max<std::uint64_t>(layer.columns, 1), 1, layer.rows);
  Sample sample;
  sample.layer.name = layer.name;
  sample.layer.format = layer.format;
  sample.layer.rows = count;
  sample.layer.columns = layer.columns;
  sample.values.resize(count * layer.columns);
  sample.weight = static_cast<double>(layer.rows) / static_cast<double>(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::uint64_t row = i * layer.rows / count;
    PARFAIT_CHECK_OK(rows.read(row, 1, sample.values.data() + i * layer.columns));
    rows.drop(row, 1);
  }
  return sample;
}

Result<double> error_of(const Sample& sample, const formats::Format& format,
                        const formats::EncodeSettings& settings) {
  PARFAIT_TRY(const LayerTarget target, LayerTarget::settle(sample.layer, format, settings));
  const std::uint64_t rows = sample.layer.rows, columns = sample.layer.columns;
  std::vector<std::vector<std::byte>> tensors;
  formats::EncodeBuffers buffers{0, {}};
  for (const formats::Part& part : target.written().parts) tensors.emplace_back(part.tensor->bytes);
  for (std::vector<std::byte>& tensor : tensors) buffers.tensors.push_back(tensor.data());
  formats::Survey survey;
  const formats::RowReader reader = [&](std::uint64_t first, std::uint64_t count, float* out) {
    std::copy_n(sample.values.data() + first * columns, count * columns, out);
    return Result<Done>(Done{});
  };
  if (target.encoder().survey) {
    PARFAIT_TRY(survey, target.encoder().survey(target.shape(), settings, reader));
  }
  std::vector<float> values = sample.values;
  target.encoder().encode(target.shape(), settings, survey, 0, rows, values.data(), buffers);
  formats::LayerData data{&target.written(), {}, {}};
  for (const std::vector<std::byte>& tensor : tensors) data.data.emplace_back(tensor);
  format.decode(data, 0, rows, values.data());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] -= sample.values[i];
  ErrorSums sums;
  add_squares(values, sample.values, sums);
  return sums.error * sample.weight;
}

// Cheapest first; only points that no other beats, and of these the lower convex hull.
void keep_hull(std::vector<Point>& points) {
  std::ranges::stable_sort(points, [](const Point& a, const Point& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.error < b.error;
  });
  std::vector<Point> hull;
  for (Point& point : points) {
    if (!hull.empty() && point.error >= hull.back().error) continue;
    while (hull.size() > 1) {
      const Point &a = hull[hull.size() - 2], &b = hull.back();
      const double before = (a.error - b.error) * static_cast<double>(point.bytes - b.bytes);
      const double after = (b.error - point.error) * static_cast<double>(b.bytes - a.bytes);
      if (before > after) break;
      hull.pop_back();
    }
    hull.push_back(std::move(point));
  }
  points = std::move(hull);
}

class Chooser {
 public:
  Chooser(QuantizeState& state, const QuantizeOptions& options)
      : state_(state), options_(options), points_(state.encoded.size()) {}

  Result<Done> choose() {
    if (options_.target_bits && options_.target_bytes)
      return make_error(ErrorCode::plan_option, "a target is given in bits and in bytes; give one");
    PARFAIT_CHECK_OK(measure());
    std::uint64_t least = 0;
    double weights = 0;
    for (std::size_t i = 0; i < points_.size(); ++i) {
      least += points_[i].front().bytes;
      weights +=
          static_cast<double>(state_.encoded[i].layer->rows * state_.encoded[i].layer->columns);
    }
    if (options_.target_bits) {
      const double allowed = *options_.target_bits * weights / 8;
      if (static_cast<double>(least) > allowed)
        return make_error(ErrorCode::plan_option,
                          "{} bits a weight cannot be had: the narrowest formats that these layers "
                          "can have take {:.3f}",
                          *options_.target_bits, static_cast<double>(least) * 8 / weights);
      take(static_cast<std::uint64_t>(allowed));
      return lay_out(state_);
    }
    // The header's length depends on the choice too.
    take(least);
    PARFAIT_CHECK_OK(lay_out(state_));
    const std::uint64_t most = *options_.target_bytes;
    if (state_.bytes > most)
      return make_error(ErrorCode::plan_option,
                        "a file of {} bytes cannot be had: with the narrowest formats that these "
                        "layers can have it takes {}",
                        most, state_.bytes);
    std::uint64_t allowed = least + (most - state_.bytes);
    while (true) {
      take(allowed);
      PARFAIT_CHECK_OK(lay_out(state_));
      if (state_.bytes <= most) return Done{};
      allowed -= std::min(allowed - least, state_.bytes - most);
    }
  }

 private:
  Result<Done> measure() {
    runtime::Threads threads(options_.threads);
    const std::function<bool(double)> progress = [this](double share) {
      if (!options_.progress) return true;
      const auto done = static_cast<std::uint64_t>(share * 1000);
      return options_.progress({done, 1000, "samples of the layers"});
    };
    return run_panels(threads, {state_.encoded.size(), 1}, progress,
                      [this](std::uint64_t i, std::uint64_t, unsigned) { return measure(i); });
  }

  Result<Done> measure(std::size_t i) {
    const EncodedLayer& encoded = state_.encoded[i];
    PARFAIT_TRY(const Sample sample, take_sample(*state_.checkpoint.state(), *encoded.layer));
    for (const std::string_view name : candidates) {
      FormatChoice choice = encoded.choice;
      const bool same = choice.format->name == name;
      choice.format = formats::find_format(name);
      if (!same) {
        choice.settings = {};
        choice.settings.arithmetic = encoded.choice.settings.arithmetic;
        if (choice.group == 0u) choice.group.reset();
      }
      const formats::EncodeSettings settings = settings_for(choice, encoded.layer->columns);
      auto target = LayerTarget::settle(*encoded.layer, *choice.format, settings);
      if (!target.ok()) continue;  // another format of the four, then
      PARFAIT_TRY(const double error, error_of(sample, *choice.format, settings));
      points_[i].push_back({target->bytes(), error, std::move(*target)});
    }
    // What the recipe says holds the layer in any case.
    if (points_[i].empty()) points_[i].push_back({encoded.target.bytes(), 0, encoded.target});
    keep_hull(points_[i]);
    return Done{};
  }

  void take(std::uint64_t allowed) {
    std::vector<std::size_t> level(points_.size());
    for (const std::vector<Point>& points : points_)
      allowed -= std::min(allowed, points.front().bytes);
    struct Step {
      double gain;  // error saved a byte
      std::size_t layer;
      bool operator<(const Step& other) const {
        return gain != other.gain ? gain < other.gain : layer > other.layer;
      }
    };
    std::priority_queue<Step> steps;
    const auto offer = [&](std::size_t layer) {
      const std::size_t at = level[layer];
      if (at + 1 >= points_[layer].size()) return;
      const Point &a = points_[layer][at], &b = points_[layer][at + 1];
      steps.push({(a.error - b.error) / static_cast<double>(b.bytes - a.bytes), layer});
    };
    for (std::size_t i = 0; i < points_.size(); ++i) offer(i);
    while (!steps.empty()) {
      const std::size_t layer = steps.top().layer;
      steps.pop();
      const std::uint64_t cost =
          points_[layer][level[layer] + 1].bytes - points_[layer][level[layer]].bytes;
      if (cost > allowed) continue;
      allowed -= cost;
      ++level[layer];
      offer(layer);
    }
    for (std::size_t i = 0; i < points_.size(); ++i) {
      state_.encoded[i].target = points_[i][level[i]].target;
      state_.layers[state_.encoded[i].entry].reason = "chosen by its measured error";
    }
  }

  QuantizeState& state_;
  const QuantizeOptions& options_;
  std::vector<std::vector<Point>> points_;  // by encoded layer
};

}  // namespace

Result<Done> choose_formats(QuantizeState& state, const QuantizeOptions& options) {
  if (state.encoded.empty()) return lay_out(state);
  return Chooser(state, options).choose();
}

}  // namespace parfait::convert
