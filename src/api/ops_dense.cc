#include "runtime/ops_dense.h"

#include <new>

#include "base/result.h"
#include "parfait/ops.h"

namespace parfait {

Result<DenseWeight> Ops::pack_dense(ConstMatrix w, std::span<const float> bias) try {
  PARFAIT_TRY(auto weight, runtime::pack_dense(*state_, w, bias));
  return DenseWeight(std::move(weight));
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "pack_dense: there is not enough memory for a weight of [{}, {}]", w.rows,
                    w.columns);
}

Result<Done> Ops::dense(ConstMatrix x, const DenseWeight& w, Matrix y) try {
  return runtime::dense(*state_, x, *w.state(), y);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory, "dense: there is not enough memory for {} rows",
                    x.rows);
}

Result<ConvWeight> Ops::pack_conv(ConstMatrix w, std::uint64_t in_channels,
                                  const ConvOptions& options, std::span<const float> bias) try {
  PARFAIT_TRY(auto weight, runtime::pack_conv(*state_, w, in_channels, options, bias));
  return ConvWeight(std::move(weight));
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "pack_conv: there is not enough memory for a weight of [{}, {}]", w.rows,
                    w.columns);
}

Result<Done> Ops::conv2d(ConstMatrix x, ImageSize size, const ConvWeight& w, Matrix y) try {
  return runtime::conv2d(*state_, x, size, *w.state(), y);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "conv2d: there is not enough memory for an image of {} × {}", size.height,
                    size.width);
}

}  // namespace parfait
