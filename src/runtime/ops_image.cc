#include "runtime/ops_image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "base/checked.h"
#include "base/result.h"
#include "kernels/group_norm/group_norm.h"
#include "kernels/upsample/upsample.h"
#include "runtime/ops.h"
#include "runtime/ops_checks.h"

namespace parfait::runtime {
namespace {

using kernels::block_pixels;
using kernels::GroupNormKernel;
using kernels::Moments;

// By group.
std::vector<Moments> group_moments(Ops& ops, const GroupNormKernel& kernel, const ConstMatrix& x,
                                   std::uint64_t groups) {
  const std::uint64_t blocks = ceil_div(x.rows, block_pixels);
  std::vector<Moments> moments(blocks * groups), joined(groups);
  ops.scratch.resize(ops.pool.count());
  for (std::vector<float>& one : ops.scratch)
    if (one.size() < 2 * x.columns) one.resize(2 * x.columns);
  ops.pool.run(blocks, [&](std::uint64_t block, unsigned thread) {
    kernels::block_moments(kernel, x, groups, block, ops.scratch[thread].data(),
                           moments.data() + block * groups);
  });
  ops.pool.run(groups, [&](std::uint64_t group, unsigned) {
    joined[group] = kernels::join_moments(x, groups, group, moments.data());
  });
  return joined;
}

// One value a channel.
struct Channels {
  std::vector<float> mean, factor, bias;

  Channels(const ConstMatrix& x, const GroupNormOptions& options,
           const std::vector<Moments>& moments)
      : mean(x.columns), factor(x.columns), bias(x.columns, -0.0f) {
    const std::uint64_t channels = x.columns / options.groups;  // of a group
    const double count = static_cast<double>(x.rows) * static_cast<double>(channels);
    for (std::uint64_t c = 0; c < x.columns; ++c) {
      const Moments& group = moments[c / channels];
      mean[c] = static_cast<float>(group.mean);
      factor[c] =
          static_cast<float>(1 / std::sqrt(group.squares / count + double{options.epsilon}));
      if (!options.weight.empty()) factor[c] *= options.weight[c];
      if (!options.bias.empty()) bias[c] = options.bias[c];
    }
  }
};

}  // namespace

Result<Done> group_norm(Ops& ops, const ConstMatrix& x, const GroupNormOptions& options,
                        const Matrix& y) {
  PARFAIT_CHECK_OK(check_operand("group_norm", "x", x, x.rows, x.columns));
  if (options.groups == 0 || x.columns % options.groups != 0)
    return make_error(ErrorCode::run_shape,
                      "group_norm: the {} channels of x can't be cut into {} groups", x.columns,
                      options.groups);
  PARFAIT_CHECK_OK(check_vector("group_norm", "weight", options.weight.size(), x.columns));
  PARFAIT_CHECK_OK(check_vector("group_norm", "bias", options.bias.size(), x.columns));
  PARFAIT_CHECK_OK(check_operand("group_norm", "y", y, x.rows, x.columns));
  if (x.rows == 0 || x.columns == 0) return Done{};
  const GroupNormKernel& kernel = ops.choose(kernels::group_norm_kernels());
  const Channels channels(x, options, group_moments(ops, kernel, x, options.groups));
  const kernels::ChannelParameters parameters{channels.mean.data(), channels.factor.data(),
                                              channels.bias.data()};
  const auto after = options.silu ? kernels::AfterNorm::silu : kernels::AfterNorm::nothing;
  ops.pool.run(ceil_div(x.rows, block_pixels), [&](std::uint64_t block, unsigned) {
    kernel.normalise(x, parameters, after, block * block_pixels,
                     std::min((block + 1) * block_pixels, x.rows), y);
  });
  return Done{};
}

Result<Done> upsample_nearest(Ops& ops, const ConstMatrix& x, const ImageSize& size,
                              std::uint64_t factor, const Matrix& y) {
  const std::optional<std::uint64_t> pixels = checked_product(std::array{size.height, size.width});
  if (!pixels)
    return make_error(ErrorCode::run_shape,
                      "upsample_nearest: an image of {} × {} pixels is too large", size.height,
                      size.width);
  if (factor == 0) return make_error(ErrorCode::run_shape, "upsample_nearest: the factor is 0");
  const std::optional<std::uint64_t> made = checked_product(std::array{*pixels, factor, factor});
  if (!made)
    return make_error(ErrorCode::run_shape,
                      "upsample_nearest: {} pixels are too many to become {} × {} times as many",
                      *pixels, factor, factor);
  PARFAIT_CHECK_OK(check_operand("upsample_nearest", "x", x, *pixels, x.columns));
  PARFAIT_CHECK_OK(check_operand("upsample_nearest", "y", y, *made, x.columns));
  if (*pixels == 0 || x.columns == 0) return Done{};
  const kernels::UpsampleKernel& kernel = ops.choose(kernels::upsample_kernels());
  const auto one = [&](std::uint64_t row, unsigned) {
    kernel.run(x, size.width, factor, row, row + 1, y);
  };
  ops.pool.run(size.height, std::ref(one));  // a reference: nothing is allocated
  return Done{};
}

}  // namespace parfait::runtime
