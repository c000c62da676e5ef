// The rows of a layer of a file, as floats, a panel at a time, in the original basis. read() also
// multiplies an activation's pre_quant_scale into the columns, so that y = x · Wᵀ holds for x as it
// comes. Reads no more of the weight than the rows asked for, through a mapping or by pread. Any
// thread may read any rows.
#ifndef PARFAIT_RUNTIME_LAYER_ROWS_H_
#define PARFAIT_RUNTIME_LAYER_ROWS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/format.h"
#include "parfait/model.h"
#include "runtime/window.h"

namespace parfait::runtime {

class LayerRows {
 public:
  // The layer must be sound (formats::check_layers).
  static Result<LayerRows> open(const formats::Checkpoint& source, const formats::Layer& layer);

  std::uint64_t rows() const { return layer_->rows; }
  std::uint64_t columns() const { return layer_->columns; }
  std::uint64_t source_row_bytes() const { return row_bytes_; }
  // Rows [first, first + count) to out, as the format decodes them.
  Result<Done> decode(std::uint64_t first, std::uint64_t count, float* out);
  // These with pre_quant_scale. A value that is not finite is an error that names it.
  Result<Done> read(std::uint64_t first, std::uint64_t count, float* out);
  // The same rows as they are stored, where they are plain floats; not checked.
  bool plain() const { return plain_; }
  Result<ConstMatrix> view(std::uint64_t first, std::uint64_t count);
  // An error that names the first value of these that is not finite, if there is one. values: what
  // read() would have given.
  Result<Done> require_finite(std::uint64_t first, std::uint64_t count, const float* values) const;
  // These rows won't be read again soon.
  void drop(std::uint64_t first, std::uint64_t count);

 private:
  Result<Done> fetch(std::uint64_t first, std::uint64_t count);

  const formats::Checkpoint* source_ = nullptr;
  const formats::Layer* layer_ = nullptr;
  formats::LayerData data_;
  const TensorInfo* weight_ = nullptr;
  std::uint64_t row_bytes_ = 0;
  bool plain_ = false;
  std::optional<Window> window_;       // the weight, where the source is not mapped
  std::vector<float> column_factors_;  // pre_quant_scale
};

// Rows `ids` of an embedding into y, from its file.
Result<Done> lookup(const formats::Checkpoint& source, const formats::Layer& table,
                    std::span<const std::int64_t> ids, const Matrix& y);
// What such a lookup holds at most beside y.
std::uint64_t lookup_bytes(const formats::Layer& table, std::uint64_t ids);

}  // namespace parfait::runtime

#endif  // PARFAIT_RUNTIME_LAYER_ROWS_H_
