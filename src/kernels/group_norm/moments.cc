// The statistics of groups: what all variants share.

#include <algorithm>

#include "base/checked.h"
#include "kernels/group_norm/group_norm.h"

namespace parfait::kernels {
namespace {

// One group's values, of which each channel has one.
double joined(const float* values, std::uint64_t channels) {
  double sum = 0;
  for (std::uint64_t c = 0; c < channels; ++c) sum += double{values[c]};
  return sum;
}

}  // namespace

void block_moments(const GroupNormKernel& kernel, const ConstMatrix& x, std::uint64_t groups,
                   std::uint64_t block, float* scratch, Moments* out) {
  const std::uint64_t first = block * block_pixels, last = std::min(first + block_pixels, x.rows);
  const std::uint64_t channels = x.columns / groups;  // of a group
  float* values = scratch;
  float* means = scratch + x.columns;
  kernel.sums(x, first, last, values);
  for (std::uint64_t g = 0; g < groups; ++g) {
    const double count = static_cast<double>(last - first) * static_cast<double>(channels);
    const auto mean = static_cast<float>(joined(values + g * channels, channels) / count);
    out[g].mean = double{mean};
    std::fill_n(means + g * channels, channels, mean);
  }
  kernel.squares(x, first, last, means, values);
  for (std::uint64_t g = 0; g < groups; ++g)
    out[g].squares = joined(values + g * channels, channels);
}

Moments join_moments(const ConstMatrix& x, std::uint64_t groups, std::uint64_t group,
                     const Moments* blocks) {
  Moments all;
  double pixels = 0;  // in all
  for (std::uint64_t block = 0; block < ceil_div(x.rows, block_pixels); ++block) {
    const Moments& one = blocks[block * groups + group];
    const auto more = static_cast<double>(std::min(block_pixels, x.rows - block * block_pixels));
    const double distance = one.mean - all.mean, share = more / (pixels + more);
    all.mean += distance * share;
    all.squares += one.squares +
                   distance * distance * share * pixels * static_cast<double>(x.columns / groups);
    pixels += more;
  }
  return all;
}

}  // namespace parfait::kernels
