// GroupNorm over an image whose pixels are rows, with an affine step and SiLU in the same pass.
//
//   x [P, C]   P pixels, C channels; a group is C / groups channels next to each other
//   μ, σ²      mean and variance over all pixels and channels of a group
//   y = fma(x − μ, factor, bias), factor = float(1 / √(σ² + ε)) · weight; then silu where asked
//
// Statistics. Pixels are cut into blocks of block_pixels, whatever the threads. In a block, for
// each channel, Σ x in float over its pixels in ascending order; the channels of a group are joined
// in double in ascending order, which gives the block's mean, rounded to float for what follows.
// Then for each channel Σ (x − mean)² in float by fused multiply-add in the same order, joined in
// double likewise. A block is read from memory once and from a cache the second time. The blocks'
// means and sums of squares are joined in double in ascending order (Chan, Golub and LeVeque 1979),
// which no subtraction of large sums spoils. μ is rounded to float.
//
// Every variant gives the same bits, but for which NaN a NaN is. y may be x.
#ifndef PARFAIT_KERNELS_GROUP_NORM_GROUP_NORM_H_
#define PARFAIT_KERNELS_GROUP_NORM_GROUP_NORM_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "parfait/model.h"
#include "parfait/plan.h"

namespace parfait::kernels {

inline constexpr std::uint64_t block_pixels = 128;

// One value a channel each.
struct ChannelParameters {
  const float *mean, *factor, *bias;
};
enum class AfterNorm { nothing, silu };

struct GroupNormKernel {
  std::string_view name;  // "group_norm.reference"
  Isa isa;
  // Pixels [first, last) each; one value a channel to out.
  void (*sums)(const ConstMatrix& x, std::uint64_t first, std::uint64_t last, float* out);
  void (*squares)(const ConstMatrix& x, std::uint64_t first, std::uint64_t last, const float* mean,
                  float* out);
  // Any range of pixels may run on any thread.
  void (*normalise)(const ConstMatrix& x, const ChannelParameters& parameters, AfterNorm after,
                    std::uint64_t first, std::uint64_t last, const Matrix& y);
};

// The mean of some values and the sum of their squared distances from it.
struct Moments {
  double mean = 0, squares = 0;
};

// One a group of the block's pixels, the block'th of x. scratch holds 2 · C floats.
void block_moments(const GroupNormKernel& kernel, const ConstMatrix& x, std::uint64_t groups,
                   std::uint64_t block, float* scratch, Moments* out);
// All blocks of one group; blocks holds `groups` of each block, in order.
Moments join_moments(const ConstMatrix& x, std::uint64_t groups, std::uint64_t group,
                     const Moments* blocks);

// Fastest first, the plain reference last.
std::span<const GroupNormKernel> group_norm_kernels();

// What the list is made of, one a source.
extern const GroupNormKernel group_norm_reference;
#if defined(__x86_64__)
extern const GroupNormKernel group_norm_avx512_vnni, group_norm_avx2;
#endif

}  // namespace parfait::kernels

#endif  // PARFAIT_KERNELS_GROUP_NORM_GROUP_NORM_H_
