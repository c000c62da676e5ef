#include "formats/asym_w4a8_int8/codebook.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace parfait::formats {
namespace {

constexpr std::uint64_t most_weights = 1 << 22;
constexpr std::size_t kurtosis_samples = 1 << 19, fit_samples = 300000;
constexpr double gaussian_below = -0.1;  // excess kurtosis of weights that the fixed table fits
constexpr int fit_rounds = 25;

// That many of the values, drawn as torch.randint does with seed 0; all where there are no more.
std::vector<float> draw(const std::vector<float>& values, std::size_t count) {
  if (values.size() <= count) return values;
  std::mt19937 random(0);
  std::vector<float> drawn(count);
  for (float& value : drawn) value = values[random() % values.size()];
  return drawn;
}

double excess_kurtosis(const std::vector<float>& values) {
  const auto n = static_cast<double>(values.size());
  double mean = 0, variance = 0, fourth = 0;
  for (float value : values) mean += value;
  mean /= n;
  for (float value : values) variance += (value - mean) * (value - mean);
  const double deviation = std::sqrt(variance / (n - 1)) + 1e-9;
  for (float value : values) {
    const double square = (value - mean) / deviation * ((value - mean) / deviation);
    fourth += square * square;
  }
  return fourth / n - 3;
}

// torch.quantile of sorted values at 0, 1/15, ..., 1.
Codebook quantiles(const std::vector<float>& sorted) {
  Codebook levels;
  constexpr float step = 1.0f / 15.0f;
  for (std::size_t i = 0; i < levels.size(); ++i) {
    const float q = i < 8 ? step * static_cast<float>(i) : 1.0f - step * static_cast<float>(15 - i);
    const float rank = q * static_cast<float>(sorted.size() - 1);
    const auto below = static_cast<std::size_t>(rank);
    const std::size_t above =
        std::min(static_cast<std::size_t>(std::ceil(rank)), sorted.size() - 1);
    const float weight = rank - static_cast<float>(below), a = sorted[below], b = sorted[above];
    levels[i] = weight < 0.5f ? a + weight * (b - a) : b - (b - a) * (1.0f - weight);
  }
  return levels;
}

}  // namespace

const Codebook& fixed_codebook() {
  static constexpr Codebook levels = {-0.980602f, -0.794529f, -0.638165f, -0.500986f,
                                      -0.377321f, -0.263187f, -0.155210f, -0.050720f,
                                      0.052541f,  0.156985f,  0.265284f,  0.379533f,
                                      0.502636f,  0.638953f,  0.794876f,  0.980671f};
  return levels;
}

std::vector<std::uint64_t> codebook_rows(std::uint64_t rows, std::uint64_t columns) {
  const std::uint64_t most = std::max<std::uint64_t>(1, most_weights / columns);
  std::vector<std::uint64_t> chosen(std::min(rows, most));
  // torch.linspace in float, cut to integers.
  const auto last = static_cast<float>(rows - 1);
  const float step = chosen.size() > 1 ? last / static_cast<float>(chosen.size() - 1) : 0.0f;
  for (std::uint64_t i = 0; i < chosen.size(); ++i) {
    const float at = i < chosen.size() / 2 || chosen.size() == 1
                         ? step * static_cast<float>(i)
                         : last - step * static_cast<float>(chosen.size() - 1 - i);
    chosen[i] = rows <= most ? i : std::min(rows - 1, static_cast<std::uint64_t>(at));
  }
  return chosen;
}

Codebook choose_codebook(const std::vector<float>& normalized) {
  // A single value has no kurtosis; comfy-kitchen's comparison with NaN fails, and it fits.
  if (excess_kurtosis(draw(normalized, kurtosis_samples)) <= gaussian_below)
    return fixed_codebook();
  return fit_codebook(normalized);
}

// Lloyd's rounds on sorted samples: a level's samples are a run, its sum a difference.
Codebook fit_codebook(const std::vector<float>& normalized) {
  std::vector<float> samples = draw(normalized, fit_samples);
  std::ranges::sort(samples);
  std::vector<double> sums(samples.size() + 1);
  for (std::size_t i = 0; i < samples.size(); ++i) sums[i + 1] = sums[i] + samples[i];
  Codebook levels = quantiles(samples);
  for (int round = 0; round < fit_rounds; ++round) {
    const NearestLevel nearest(levels);
    Codebook next = levels;
    auto begin = samples.begin();
    for (unsigned c = 0; c < levels.size() && begin != samples.end();) {
      // Of equal levels the first takes all samples.
      unsigned equal = c + 1;
      while (equal < levels.size() && levels[equal] == levels[c]) ++equal;
      const auto end = std::partition_point(
          begin, samples.end(), [&](float value) { return nearest.index(value) < equal; });
      const auto from = static_cast<std::size_t>(begin - samples.begin());
      const auto to = static_cast<std::size_t>(end - samples.begin());
      if (from < to)
        next[c] = static_cast<float>((sums[to] - sums[from]) / static_cast<double>(to - from));
      begin = end;
      c = equal;
    }
    levels = next;
  }
  return levels;
}

NearestLevel::NearestLevel(const Codebook& levels) : levels_(levels) {
  for (unsigned b = 0; b < buckets; ++b)
    start_[b] = static_cast<std::uint8_t>(
        std::ranges::count_if(levels, [&](float level) { return bucket(level) < b; }));
}

}  // namespace parfait::formats
