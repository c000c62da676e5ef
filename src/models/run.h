// What a graph runs its operations with: weights, operations, the caller's wish to stop, and where
// the time went.
#ifndef PARFAIT_MODELS_RUN_H_
#define PARFAIT_MODELS_RUN_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "models/matrix.h"
#include "models/weights.h"
#include "models/workplace.h"
#include "parfait/generate.h"
#include "runtime/ops.h"
#include "runtime/ops_attention.h"
#include "runtime/ops_dense.h"
#include "runtime/ops_image.h"
#include "runtime/ops_rows.h"

namespace parfait::models {

class Run {
 public:
  // profile may be null. stop is asked at every block; empty: never.
  Run(runtime::Ops& ops, Weights* weights, Profile* profile, std::function<bool()> stop = {})
      : ops_(ops), weights_(weights), profile_(profile), stop_(std::move(stop)) {}

  DType activation_dtype() const { return weights_->activation_dtype(); }
  runtime::Ops& ops() { return ops_; }

  Result<Done> enter(std::size_t block);
  Result<Done> linear(std::initializer_list<Weights::Call> calls, const ConstMatrix& x) {
    return timed(OpKind::linear, [&] { return weights_->linear(calls, x); });
  }
  Result<Done> linear(const Linear& layer, const ConstMatrix& x, const Matrix& y) {
    return linear({{&layer, y}}, x);
  }
  Result<Done> lookup(const Linear& table, std::span<const std::int64_t> ids, const Matrix& y) {
    return timed(OpKind::linear, [&] { return weights_->lookup(table, ids, y); });
  }
  Result<Done> attention(const ConstMatrix& q, const ConstMatrix& k, const ConstMatrix& v,
                         const AttentionOptions& options, const Matrix& y) {
    return timed(OpKind::attention, [&] { return runtime::attention(ops_, q, k, v, options, y); });
  }
  Result<Done> rms_norm(const ConstMatrix& x, const NormOptions& options, const Matrix& y) {
    return timed(OpKind::norm, [&] { return runtime::rms_norm(ops_, x, options, y); });
  }
  Result<Done> layer_norm(const ConstMatrix& x, const NormOptions& options, const Matrix& y) {
    return timed(OpKind::norm, [&] { return runtime::layer_norm(ops_, x, options, y); });
  }
  Result<Done> group_norm(const ConstMatrix& x, const GroupNormOptions& options, const Matrix& y) {
    return timed(OpKind::norm, [&] { return runtime::group_norm(ops_, x, options, y); });
  }
  Result<Done> rope(const ConstMatrix& x, const ConstMatrix& cos, const ConstMatrix& sin,
                    const RopeOptions& options, const Matrix& y) {
    return timed(OpKind::rope, [&] { return runtime::rope(ops_, x, cos, sin, options, y); });
  }
  Result<Done> silu(const ConstMatrix& x, const Matrix& y) {
    return timed(OpKind::pointwise, [&] { return runtime::silu(ops_, x, y); });
  }
  Result<Done> silu_gate(const ConstMatrix& gate, const ConstMatrix& up, const Matrix& y) {
    return timed(OpKind::pointwise, [&] { return runtime::silu_gate(ops_, gate, up, y); });
  }
  Result<Done> add_gated(const ConstMatrix& x, std::span<const float> gate, const ConstMatrix& h,
                         const Matrix& y) {
    return timed(OpKind::pointwise, [&] { return runtime::add_gated(ops_, x, gate, h, y); });
  }
  Result<Done> conv2d(const ConstMatrix& x, ImageSize size, const runtime::ConvWeight& w,
                      const Matrix& y) {
    return timed(OpKind::convolution, [&] { return runtime::conv2d(ops_, x, size, w, y); });
  }
  Result<Done> upsample_nearest(const ConstMatrix& x, ImageSize size, std::uint64_t factor,
                                const Matrix& y) {
    return timed(OpKind::pointwise,
                 [&] { return runtime::upsample_nearest(ops_, x, size, factor, y); });
  }
  Result<Done> check_stop() const;

 private:
  template <class Work>
  Result<Done> timed(OpKind kind, const Work& work) {
    if (!profile_) return work();
    const auto start = std::chrono::steady_clock::now();
    Result<Done> done = work();
    profile_->add(kind,
                  std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    return done;
  }

  runtime::Ops& ops_;
  Weights* weights_;
  Profile* profile_;
  std::function<bool()> stop_;
};

}  // namespace parfait::models

#endif  // PARFAIT_MODELS_RUN_H_
