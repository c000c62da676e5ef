// The public view of loaded models and sessions.

#include "parfait/model.h"

#include <new>

#include "base/result.h"
#include "runtime/model.h"

namespace parfait {

std::size_t Model::size() const { return state_->layers.size(); }
const Plan& Model::plan() const { return state_->plan; }

std::uint64_t Model::resident_bytes() const {
  std::uint64_t bytes = 0;
  for (const runtime::LoadedLayer& layer : state_->layers) bytes += layer.resident_bytes();
  return bytes;
}

Result<Model> load(const Plan& plan, const LoadOptions& options) try {
  PARFAIT_TRY(std::shared_ptr<const runtime::Model> state, runtime::load(plan, options));
  return Model(std::move(state));
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "there is not enough memory to load the layers asked for");
}

Session::Session(Model model, unsigned threads)
    : state_(std::make_unique<runtime::Session>(model.state(), threads)) {}
Session::~Session() = default;
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;

Result<Done> Session::linear(std::string_view layer, ConstMatrix x, Matrix y) try {
  return state_->linear(layer, x, y);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "there is not enough memory to run layer {} on {} rows", printable(layer),
                    x.rows);
}

Result<Done> Session::linear(std::span<const LinearTarget> targets, ConstMatrix x) try {
  return state_->linear(targets, x);
} catch (const std::bad_alloc&) {
  return make_error(ErrorCode::out_of_memory,
                    "there is not enough memory to run {} layers on {} rows", targets.size(),
                    x.rows);
}

Result<Done> Session::lookup(std::string_view layer, std::span<const std::int64_t> ids, Matrix y) {
  return state_->lookup(layer, ids, y);
}

}  // namespace parfait
