#include "convert/encode_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/checked.h"
#include "base/result.h"
#include "convert/error_sums.h"
#include "convert/fast_rows.h"
#include "convert/panels.h"
#include "runtime/layer_rows.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t panel_values = std::uint64_t{1} << 18;
constexpr std::uint64_t copied_at_once = std::uint64_t{4} << 20;

// Rows of a panel: whole blocks of the error sums, so many that all threads' panels take no more
// than half of what is allowed.
std::uint64_t panel_rows_for(std::uint64_t rows, std::uint64_t columns, const EncodeMeans& means) {
  // A panel's values twice as floats, its codes and their copy, and the source's bytes.
  constexpr std::uint64_t bytes_a_value = 24;
  const std::uint64_t block = block_rows(columns);
  const std::uint64_t allowed = means.max_memory / 2 / means.threads.count() / bytes_a_value;
  const std::uint64_t values = std::min(panel_values, allowed);
  const std::uint64_t blocks =
      std::max<std::uint64_t>(1, values / std::max<std::uint64_t>(1, block * columns));
  return std::max<std::uint64_t>(1, std::min(blocks * block, round_up(rows, block)));
}

// By the format's encoder, or another of its kind: two passes, since a scale of the whole weight is
// not known before all rows were seen.
class PlainRows {
 public:
  PlainRows(const EncodeWork& work, runtime::LayerRows& rows, std::uint64_t panel_rows,
            const EncodeMeans& means)
      : work_(work),
        rows_(rows),
        means_(means),
        panel_rows_(panel_rows),
        columns_(rows.columns()),
        errors_(rows.rows(), columns_),
        scratch_(means.threads.count()) {}

  Result<ErrorSums> run() {
    const formats::EncodedTensor& weight = work_.target.tensors()[0];
    const std::uint64_t bytes = means_.out.bytes(work_.outputs[0]);
    const std::uint64_t stored = stored_rows(weight);
    row_bytes_ = stored ? bytes / stored : 0;
    for (std::size_t i = 1; i < work_.outputs.size(); ++i)
      side_.emplace_back(means_.out.bytes(work_.outputs[i]));
    PARFAIT_CHECK_OK(survey());
    PARFAIT_CHECK_OK(encode());
    // Rows that the format adds are zeros.
    const std::vector<std::byte> zeros((stored - rows_.rows()) * row_bytes_);
    PARFAIT_CHECK_OK(means_.out.put(work_.outputs[0], rows_.rows() * row_bytes_, zeros));
    for (std::size_t i = 0; i < side_.size(); ++i)
      PARFAIT_CHECK_OK(means_.out.put(work_.outputs[i + 1], 0, side_[i]));
    PARFAIT_CHECK_OK(measure(bytes));
    return errors_.total();
  }

 private:
  struct Scratch {
    std::vector<float> source, written;
    std::vector<std::byte> bytes;
  };

  std::uint64_t stored_rows(const formats::EncodedTensor& weight) const {
    const auto& shape = weight.shape;
    return work_.target.shape().kind == LayerKind::experts && shape.size() > 2 ? shape[0] * shape[1]
                                                                               : shape[0];
  }

  // Rows for a survey, by all threads where they are many.
  Result<Done> read_rows(std::uint64_t first, std::uint64_t count, float* out) {
    return run_panels(means_.threads, {count, panel_rows_}, means_.progress ? still_ : nullptr,
                      [&](std::uint64_t at, std::uint64_t some, unsigned) -> Result<Done> {
                        PARFAIT_CHECK_OK(rows_.read(first + at, some, out + at * columns_));
                        rows_.drop(first + at, some);
                        return Done{};
                      });
  }

  Result<Done> survey() {
    const formats::RowReader reader = [this](std::uint64_t first, std::uint64_t count, float* out) {
      return read_rows(first, count, out);
    };
    if (work_.encoder) {
      if (!work_.encoder->survey) return Done{};
      return work_.encoder->survey(reader);
    }
    const formats::Encoder& encoder = work_.target.encoder();
    if (!encoder.survey) return Done{};
    PARFAIT_TRY(survey_, encoder.survey(work_.target.shape(), work_.target.settings(), reader));
    return Done{};
  }

  Result<Done> encode() {
    return run_panels(
        means_.threads, {rows_.rows(), panel_rows_, 0, 0.6}, means_.progress,
        [this](std::uint64_t first, std::uint64_t count, unsigned thread) -> Result<Done> {
          Scratch& s = scratch_[thread];
          s.source.resize(panel_rows_ * columns_);
          s.bytes.assign(panel_rows_ * row_bytes_, std::byte{0});
          PARFAIT_CHECK_OK(rows_.read(first, count, s.source.data()));
          formats::EncodeBuffers buffers{first, {s.bytes.data()}};
          for (std::vector<std::byte>& tensor : side_) buffers.tensors.push_back(tensor.data());
          if (work_.encoder)
            work_.encoder->encode(first, count, s.source.data(), buffers);
          else
            work_.target.encoder().encode(work_.target.shape(), work_.target.settings(), survey_,
                                          first, count, s.source.data(), buffers);
          rows_.drop(first, count);
          return means_.out.put(work_.outputs[0], first * row_bytes_,
                                ByteSpan(s.bytes).first(count * row_bytes_));
        });
  }

  // From the output's bytes alone, as a reader of the file decodes them.
  Result<Done> measure(std::uint64_t weight_bytes) {
    PARFAIT_TRY(runtime::Window window, runtime::Window::reserve(weight_bytes));
    formats::LayerData data{&work_.target.written(), {window.bytes()}, {}};
    for (std::size_t i = 0; i < side_.size(); ++i) {
      PARFAIT_CHECK_OK(means_.out.get(work_.outputs[i + 1], 0, side_[i]));
      data.data.emplace_back(side_[i]);
    }
    return run_panels(
        means_.threads, {rows_.rows(), panel_rows_, 0.6, 1}, means_.progress,
        [&](std::uint64_t first, std::uint64_t count, unsigned thread) -> Result<Done> {
          Scratch& s = scratch_[thread];
          s.written.resize(panel_rows_ * columns_);
          s.source.resize(panel_rows_ * columns_);
          const std::uint64_t at = first * row_bytes_, bytes = count * row_bytes_;
          PARFAIT_CHECK_OK(means_.out.get(work_.outputs[0], at, {window.data() + at, bytes}));
          work_.target.format().decode(data, first, count, s.written.data());
          window.drop(at, bytes);
          PARFAIT_CHECK_OK(rows_.read(first, count, s.source.data()));
          rows_.drop(first, count);
          for (std::uint64_t row = 0; row < count; ++row) {
            const std::span source(s.source.data() + row * columns_, columns_);
            const std::span written(s.written.data() + row * columns_, columns_);
            for (std::uint64_t k = 0; k < columns_; ++k) written[k] -= source[k];
            ErrorSums& sums = errors_.of_row(first + row);
            add_squares(written, source, sums);
            sums.most = std::max(sums.most, largest_magnitude(written));
          }
          return Done{};
        });
  }

  const EncodeWork& work_;
  runtime::LayerRows& rows_;
  const EncodeMeans& means_;
  const std::uint64_t panel_rows_, columns_;
  std::uint64_t row_bytes_ = 0;
  const std::function<bool(double)> still_ = [this](double) { return means_.progress(0); };
  formats::Survey survey_;
  std::vector<std::vector<std::byte>> side_;  // all tensors but the weight
  BlockErrors errors_;
  std::vector<Scratch> scratch_;
};

}  // namespace

double LayerError::sqnr_db() const {
  return relative_l2 > 0 ? -20 * std::log10(relative_l2) : std::numeric_limits<double>::infinity();
}

Result<LayerError> encode_layer(const EncodeWork& work, const EncodeMeans& means) {
  PARFAIT_TRY(runtime::LayerRows rows, runtime::LayerRows::open(work.source, work.layer));
  const std::uint64_t panel = panel_rows_for(rows.rows(), rows.columns(), means);
  PARFAIT_TRY(const ErrorSums sums, has_fast_rows(work)
                                        ? encode_fast_rows(work, rows, panel, means)
                                        : PlainRows(work, rows, panel, means).run());
  rows.drop(0, rows.rows());
  LayerError error;
  error.energy = sums.energy;
  error.max_error = sums.most;
  if (sums.error > 0)
    error.relative_l2 = sums.energy > 0 ? std::sqrt(sums.error / sums.energy)
                                        : std::numeric_limits<double>::infinity();
  return error;
}

Result<Done> copy_tensor(const formats::Checkpoint& source, const TensorInfo& tensor,
                         std::size_t output, const EncodeMeans& means) {
  const io::Reader& reader = *source.index->shards()[tensor.shard].reader;
  std::vector<std::vector<std::byte>> scratch(means.threads.count());
  return run_panels(means.threads, {tensor.bytes, copied_at_once}, means.progress,
                    [&](std::uint64_t first, std::uint64_t count, unsigned thread) -> Result<Done> {
                      PARFAIT_TRY(const ByteSpan bytes,
                                  reader.read(tensor.offset + first, count, scratch[thread]));
                      PARFAIT_CHECK_OK(means.out.put(output, first, bytes));
                      reader.drop(tensor.offset + first, count);
                      return Done{};
                    });
}

}  // namespace parfait::convert
