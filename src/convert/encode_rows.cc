#include "convert/encode_rows.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/checked.h"
#include "base/result.h"
#include "container/writer.h"
#include "convert/panels.h"
#include "runtime/layer_rows.h"
#include "runtime/window.h"

namespace parfait::convert {
namespace {

// The rows of an item, across its segments.
class SegmentReader {
 public:
  static Result<SegmentReader> open(const formats::Checkpoint& source, const Item& item) {
    SegmentReader reader;
    for (const Segment& segment : item.segments) {
      PARFAIT_TRY(runtime::LayerRows rows, runtime::LayerRows::open(source, *segment.layer));
      reader.segments_.push_back({segment, std::move(rows)});
    }
    return reader;
  }

  Result<Done> read(std::uint64_t first, std::uint64_t count, float* out) {
    return each(first, count, [&](Open& open, std::uint64_t row, std::uint64_t rows) {
      Result<Done> done = open.rows.read(row, rows, out);
      out += rows * open.rows.columns();
      return done;
    });
  }
  void drop(std::uint64_t first, std::uint64_t count) {
    (void)each(first, count,
               [&](Open& open, std::uint64_t row, std::uint64_t rows) -> Result<Done> {
                 open.rows.drop(row, rows);
                 return Done{};
               });
  }
  // "row 3 of blocks.0.attn.to_k", of a row of the item.
  std::string row_text(std::uint64_t row) {
    std::string text;
    (void)each(row, 1, [&](Open& open, std::uint64_t at, std::uint64_t) -> Result<Done> {
      text = fmt::format("row {} of {}", at, printable(open.segment.layer->name));
      return Done{};
    });
    return text;
  }

 private:
  struct Open {
    Segment segment;
    runtime::LayerRows rows;
  };

  template <class F>
  Result<Done> each(std::uint64_t first, std::uint64_t count, F&& f) {
    for (Open& open : segments_) {
      const std::uint64_t rows = open.segment.rows;
      if (first >= rows) {
        first -= rows;
        continue;
      }
      const std::uint64_t here = std::min(count, rows - first);
      PARFAIT_CHECK_OK(f(open, open.segment.first + first, here));
      count -= here;
      first = 0;
      if (count == 0) break;
    }
    return Done{};
  }

  std::vector<Open> segments_;
};

class RowsEncoder {
 public:
  RowsEncoder(const RowsToEncode& work, SegmentReader& reader, const EncodeRowsOptions& options,
              const PutBytes& put)
      : work_(work), reader_(reader), options_(options), put_(put) {}

  Result<Done> run(runtime::Threads& threads) {
    PARFAIT_CHECK_OK(make_room());
    const std::uint64_t rows = std::min(work_.shape.rows, options_.row_limit);
    const std::uint64_t row_values = std::max<std::uint64_t>(work_.shape.columns, 1);
    // Two copies of a panel's floats a thread, in a quarter of the memory.
    const std::uint64_t budget = options_.max_memory / 4 / threads.count() / (2 * sizeof(float));
    const std::uint64_t panel =
        std::clamp<std::uint64_t>(std::min<std::uint64_t>(budget, 1 << 20) / row_values, 1, 4096);
    double begin = 0;
    if (work_.encoder.survey) {
      PARFAIT_CHECK_OK(survey());
      begin = 0.4;
    }
    scratch_.resize(threads.count());
    PARFAIT_CHECK_OK(run_panels(threads, {rows, panel, begin, 1}, options_.progress,
                                [&](std::uint64_t first, std::uint64_t count, unsigned thread) {
                                  return encode(first, count, scratch_[thread]);
                                }));
    for (std::size_t t = 1; t < buffers_.size(); ++t)
      PARFAIT_CHECK_OK(put_(t, 0, {buffers_[t], bytes_[t]}));
    return Done{};
  }

 private:
  struct Scratch {
    std::vector<float> values, decoded;
  };

  Result<Done> make_room() {
    for (const formats::EncodedTensor& tensor :
         work_.encoder.tensors(work_.shape, work_.settings)) {
      PARFAIT_TRY(const std::uint64_t bytes, container::tensor_bytes({std::string(tensor.suffix),
                                                                      tensor.dtype, tensor.shape}));
      PARFAIT_TRY(runtime::Window window, runtime::Window::reserve(bytes));
      buffers_.push_back(window.data());
      windows_.push_back(std::move(window));
      bytes_.push_back(bytes);
    }
    // Rows as stored: some formats pad their number, and what stands behind the last row is zeros.
    const std::vector<std::uint64_t> shape =
        work_.encoder.tensors(work_.shape, work_.settings)[0].shape;
    const std::uint64_t stored = shape.size() == 2 ? shape[0] : work_.shape.rows;
    row_bytes_ = stored ? bytes_[0] / stored : 0;
    return Done{};
  }

  Result<Done> survey() {
    // Whatever reads the whole weight must be able to end on a signal.
    std::uint64_t calls = 0;
    const auto read = [&](std::uint64_t first, std::uint64_t count, float* out) -> Result<Done> {
      const double share = 0.4 * static_cast<double>(first) /
                           static_cast<double>(std::max<std::uint64_t>(work_.shape.rows, 1));
      if (calls++ % 16 == 0 && options_.progress && !options_.progress(share))
        return Error{ErrorCode::cancelled, "cancelled"};
      return reader_.read(first, count, out);
    };
    PARFAIT_TRY(survey_, work_.encoder.survey(work_.shape, work_.settings, read));
    return Done{};
  }

  Result<Done> encode(std::uint64_t first, std::uint64_t count, Scratch& scratch) {
    const std::uint64_t values = count * work_.shape.columns;
    scratch.values.resize(values);
    PARFAIT_CHECK_OK(reader_.read(first, count, scratch.values.data()));
    std::vector<float> source;
    const bool compare = options_.compare == EncodeRowsOptions::Compare::yes;
    if (compare) source = scratch.values;
    work_.encoder.encode(work_.shape, work_.settings, survey_, first, count, scratch.values.data(),
                         {0, buffers_});
    if (compare) {
      scratch.decoded.resize(values);
      work_.decode(buffers_, first, count, scratch.decoded.data());
      PARFAIT_CHECK_OK(same_bits(first, source, scratch.decoded));
    }
    const std::uint64_t at = first * row_bytes_, bytes = count * row_bytes_;
    PARFAIT_CHECK_OK(put_(0, at, {buffers_[0] + at, bytes}));
    windows_[0].drop(at, bytes);
    reader_.drop(first, count);
    return Done{};
  }

  Result<Done> same_bits(std::uint64_t first, std::span<const float> source,
                         std::span<const float> written) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      if (std::bit_cast<std::uint32_t>(source[i]) == std::bit_cast<std::uint32_t>(written[i]))
        continue;
      const std::uint64_t columns = work_.shape.columns;
      return make_error(
          ErrorCode::convert_loss,
          "layer {}: {} cannot hold its values exactly: column {} of {} is {}, and would be {}; "
          "without --lossless it is rounded",
          printable(work_.item.name), work_.target, i % columns,
          reader_.row_text(first + i / columns), source[i], written[i]);
    }
    return Done{};
  }

  const RowsToEncode& work_;
  SegmentReader& reader_;
  const EncodeRowsOptions& options_;
  const PutBytes& put_;
  formats::Survey survey_;
  std::vector<runtime::Window> windows_;  // of each tensor: only rows in use take memory
  std::vector<std::byte*> buffers_;       // the windows' places
  std::vector<std::uint64_t> bytes_;
  std::uint64_t row_bytes_ = 0;
  std::vector<Scratch> scratch_;
};

}  // namespace

Result<Done> encode_rows(const RowsToEncode& rows, runtime::Threads& threads,
                         const EncodeRowsOptions& options, const PutBytes& put) {
  PARFAIT_TRY(SegmentReader reader, SegmentReader::open(rows.source, rows.item));
  return RowsEncoder(rows, reader, options, put).run(threads);
}

}  // namespace parfait::convert
