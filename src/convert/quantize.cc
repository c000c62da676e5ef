// Carries a plan out.

#include "parfait/quantize.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "base/result.h"
#include "convert/best/best.h"
#include "convert/encode_layer.h"
#include "convert/quantize_state.h"

namespace parfait {
namespace convert {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Tensors that are written without a report: one journal line for so many bytes.
constexpr std::uint64_t journal_bytes = std::uint64_t{64} << 20;

class Run {
 public:
  Run(const QuantizeState& state, const QuantizeRun& run, Output out)
      : state_(state),
        run_(run),
        out_(std::move(out)),
        threads_(run.threads),
        start_(Clock::now()),
        means_{out_, threads_, run.max_memory, run.isa, {}} {
    if (run.resume == Resume::yes) out_.file().keep();
    for (const QuantizeState::Copy& copy : state.copies) total_ += copy.tensor->bytes;
    for (const EncodedLayer& layer : state.encoded) total_ += source_bytes(layer);
  }

  Result<QuantizeReport> run() {
    read_journal();
    for (std::size_t i = 0; i < state_.encoded.size(); ++i) PARFAIT_CHECK_OK(encode(i));
    PARFAIT_CHECK_OK(copy());
    for (const auto& [output, text] : state_.markers)
      PARFAIT_CHECK_OK(out_.put(output, 0, std::as_bytes(std::span(text))));
    if (run_.progress && !run_.progress({total_, total_, "writing out"}))
      return make_error(ErrorCode::cancelled, "the work was cancelled");
    PARFAIT_CHECK_OK(out_.file().finish());
    return report();
  }

 private:
  static std::uint64_t source_bytes(const EncodedLayer& encoded) {
    const TensorInfo* bias = encoded.layer->part("bias");
    return encoded.layer->stored_bytes() - (bias ? bias->bytes : 0);
  }

  bool tell(std::uint64_t done, std::string_view name) {
    if (!run_.progress) return true;
    const double seconds = seconds_since(start_);
    const double rate =
        seconds > 0 ? static_cast<double>(done_ + done - done_before_) / seconds / 1e6 : 0;
    return run_.progress({done_ + done, total_, fmt::format("{:.0f} MB/s {}", rate, name)});
  }

  // The better encoder of a layer, and what it needs while it runs.
  struct Better {
    BestLayer layer;
    std::optional<Inputs> inputs;
    BestSurvey survey;
    RowEncoder encoder;
  };

  Result<std::shared_ptr<Better>> better_for(const EncodedLayer& encoded) {
    const LayerTarget& target = encoded.target;
    if (state_.quality == Quality::kitchen || !has_best(target.format().name))
      return std::shared_ptr<Better>();
    auto better = std::make_shared<Better>();
    better->layer = {&target.format(), target.shape(), target.settings(), nullptr};
    const std::string_view name = encoded.layer->name;
    if (state_.calibration && has_calibrated(target.format().name) &&
        state_.calibration->find(name)) {
      InputOptions options;
      options.max_memory = run_.max_memory / 2;
      PARFAIT_TRY(better->inputs, state_.calibration->inputs(name, target.shape(),
                                                             target.settings(), options, threads_));
      better->layer.inputs = &*better->inputs;
    }
    Better* const b = better.get();
    b->encoder.survey = [b](const formats::RowReader& rows) -> Result<Done> {
      PARFAIT_TRY(b->survey, survey_best(b->layer, rows));
      return Done{};
    };
    b->encoder.encode = [b](std::uint64_t first, std::uint64_t count, float* w,
                            const formats::EncodeBuffers& buffers) {
      encode_best(b->layer, b->survey, first, count, w, buffers);
    };
    return better;
  }

  Result<Done> encode(std::size_t i) {
    const EncodedLayer& encoded = state_.encoded[i];
    const std::uint64_t bytes = source_bytes(encoded);
    LayerReport report;
    report.name = encoded.layer->name;
    report.format = encoded.target.format().name;
    report.settings = state_.layers[encoded.entry].settings;
    report.weights = encoded.layer->rows * encoded.layer->columns;
    report.source_bytes = bytes;
    report.bytes = encoded.target.bytes();
    LayerError error;
    if (const auto found = layers_done_.find(i); found != layers_done_.end()) {
      error = found->second.error;
      report.seconds = found->second.seconds;
      report.resumed = true;
      done_before_ += bytes;
    } else {
      const Clock::time_point start = Clock::now();
      means_.progress = [&](double share) {
        return tell(static_cast<std::uint64_t>(share * static_cast<double>(bytes)), report.name);
      };
      PARFAIT_TRY(const std::shared_ptr<Better> better, better_for(encoded));
      PARFAIT_TRY(error, encode_layer({*state_.checkpoint.state(), *encoded.layer, encoded.target,
                                       encoded.outputs, better ? &better->encoder : nullptr},
                                      means_));
      report.calibrated = better && better->inputs;
      report.seconds = seconds_since(start);
      PARFAIT_CHECK_OK(
          out_.file().record(fmt::format("layer {} {:a} {:a} {:a} {:a}", i, error.relative_l2,
                                         error.energy, error.max_error, report.seconds)));
    }
    done_ += bytes;
    report.relative_l2 = error.relative_l2;
    report.sqnr_db = error.sqnr_db();
    report.energy = error.energy;
    report.max_error = error.max_error;
    reports_.push_back(std::move(report));
    return Done{};
  }

  Result<Done> copy() {
    std::uint64_t since = 0;
    for (std::size_t i = 0; i < state_.copies.size(); ++i) {
      const auto& [tensor, output] = state_.copies[i];
      if (i < copies_done_) {
        done_before_ += tensor->bytes;
      } else {
        means_.progress = [&, t = tensor](double share) {
          return tell(static_cast<std::uint64_t>(share * static_cast<double>(t->bytes)), t->name);
        };
        PARFAIT_CHECK_OK(copy_tensor(*state_.checkpoint.state(), *tensor, output, means_));
        since += tensor->bytes;
        if (since >= journal_bytes) {
          PARFAIT_CHECK_OK(out_.file().record(fmt::format("copies {}", i + 1)));
          since = 0;
        }
      }
      done_ += tensor->bytes;
    }
    return Done{};
  }

  void read_journal() {
    for (const std::string& line : out_.file().journal()) {
      std::size_t i = 0;
      double l2 = 0, energy = 0, most = 0, seconds = 0;
      if (std::sscanf(line.c_str(), "layer %zu %la %la %la %la", &i, &l2, &energy, &most,
                      &seconds) == 5 &&
          i < state_.encoded.size())
        layers_done_[i] = {{l2, energy, static_cast<float>(most)}, seconds};
      else if (std::sscanf(line.c_str(), "copies %zu", &i) == 1)
        copies_done_ = std::max(copies_done_, std::min(i, state_.copies.size()));
    }
  }

  QuantizeReport report() {
    QuantizeReport report;
    double error = 0, energy = 0;
    for (const LayerReport& layer : reports_) {
      energy += layer.energy;
      error += layer.relative_l2 * layer.relative_l2 * layer.energy;
    }
    report.layers = std::move(reports_);
    for (const container::Shard& shard : state_.checkpoint.state()->index->shards())
      report.source_bytes += shard.reader->size();
    report.bytes = state_.bytes;
    report.relative_l2 = energy > 0 ? std::sqrt(error / energy) : 0;
    report.seconds = seconds_since(start_);
    return report;
  }

  struct Before {
    LayerError error;
    double seconds = 0;
  };
  const QuantizeState& state_;
  const QuantizeRun& run_;
  Output out_;
  runtime::Threads threads_;
  const Clock::time_point start_;
  EncodeMeans means_;
  std::uint64_t total_ = 0, done_ = 0, done_before_ = 0;
  std::unordered_map<std::size_t, Before> layers_done_;
  std::size_t copies_done_ = 0;
  std::vector<LayerReport> reports_;
};

}  // namespace
}  // namespace convert

Result<QuantizeReport> quantize(const QuantizePlan& plan, const std::filesystem::path& target,
                                const QuantizeRun& run) {
  const convert::QuantizeState& state = *plan.state();
  const Checkpoint& source = state.checkpoint;
  if (!state.calibration_path.empty())
    PARFAIT_CHECK_OK(convert::refuse_files(target, std::span(&state.calibration_path, 1)));
  PARFAIT_TRY(convert::Output out,
              convert::Output::create(target, state.tensors, std::span(&source, 1),
                                      {state.metadata, state.fingerprint,
                                       run.resume == Resume::yes ? io::PartFile::Start::resume
                                                                 : io::PartFile::Start::afresh}));
  return convert::Run(state, run, std::move(out)).run();
}

}  // namespace parfait
