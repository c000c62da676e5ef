// The public view of the operations on rows and, but for convolution, on images.

#include "runtime/ops_rows.h"

#include <new>

#include "base/result.h"
#include "parfait/ops.h"
#include "runtime/ops.h"
#include "runtime/ops_image.h"

namespace parfait {

Result<Done> Ops::rms_norm(ConstMatrix x, const NormOptions& options, Matrix y) {
  return runtime::rms_norm(*state_, x, options, y);
}
Result<Done> Ops::layer_norm(ConstMatrix x, const NormOptions& options, Matrix y) {
  return runtime::layer_norm(*state_, x, options, y);
}
Result<Done> Ops::rope(ConstMatrix x, ConstMatrix cos, ConstMatrix sin, const RopeOptions& options,
                       Matrix y) {
  return runtime::rope(*state_, x, cos, sin, options, y);
}
Result<Done> Ops::silu(ConstMatrix x, Matrix y) { return runtime::silu(*state_, x, y); }
Result<Done> Ops::gelu(ConstMatrix x, Gelu kind, Matrix y) {
  return runtime::gelu(*state_, x, kind, y);
}
Result<Done> Ops::silu_gate(ConstMatrix gate, ConstMatrix up, Matrix y) {
  return runtime::silu_gate(*state_, gate, up, y);
}
Result<Done> Ops::gelu_gate(ConstMatrix gate, ConstMatrix up, Gelu kind, Matrix y) {
  return runtime::gelu_gate(*state_, gate, up, kind, y);
}
Result<Done> Ops::add_gated(ConstMatrix x, std::span<const float> gate, ConstMatrix h, Matrix y) {
  return runtime::add_gated(*state_, x, gate, h, y);
}

Result<Done> Ops::group_norm(ConstMatrix x, const GroupNormOptions& options, Matrix y) try {
  return runtime::group_norm(*state_, x, options, y);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "group_norm: there is not enough memory for the statistics of {} pixels",
                    x.rows);
}
Result<Done> Ops::upsample_nearest(ConstMatrix x, ImageSize size, std::uint64_t factor, Matrix y) {
  return runtime::upsample_nearest(*state_, x, size, factor, y);
}

}  // namespace parfait
