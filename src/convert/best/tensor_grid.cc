// int8_tensorwise with one scale for the tensor, float8_e4m3fn and float8_e5m2: the scale is the
// survey's, so that there is nothing to choose but the nearest codes.

#include "base/bytes.h"
#include "base/floats.h"
#include "convert/best/grid.h"
#include "convert/best/sums.h"

namespace parfait::convert {
namespace {

enum class Codes { int8, e4m3, e5m2 };

class TensorGrid final : public Grid {
 public:
  TensorGrid(const BestLayer& layer, float scale)
      : columns_(layer.weight.columns),
        scale_(scale),
        codes_(layer.format->name == "float8_e4m3fn" ? Codes::e4m3
               : layer.format->name == "float8_e5m2" ? Codes::e5m2
                                                     : Codes::int8) {}

  void fit(Row w, Row, RowFit& row) const override {
    row.scale = scale_;
    row.codes.resize(columns_);
    for (std::size_t k = 0; k < columns_; ++k) nearest(w[k], k, row);
  }

  float nearest(float w, std::uint64_t column, RowFit& row) const override {
    const float scaled = scale_ > 0 ? w / scale_ : 0.0f;
    switch (codes_) {
      case Codes::e4m3:
        row.codes[column] = float_to_e4m3(scaled);
        break;
      case Codes::e5m2:
        row.codes[column] = float_to_e5m2(scaled);
        break;
      case Codes::int8:
        row.codes[column] = static_cast<std::uint8_t>(
            static_cast<std::int8_t>(nearest_integer(clamped(scaled, 127))));
    }
    return value(column, row);
  }

  float value(std::uint64_t column, const RowFit& row) const override {
    const std::uint8_t code = row.codes[column];
    switch (codes_) {
      case Codes::e4m3:
        return e4m3_to_float(code) * scale_;
      case Codes::e5m2:
        return e5m2_to_float(code) * scale_;
      case Codes::int8:
        break;
    }
    return static_cast<float>(static_cast<std::int8_t>(code)) * scale_;
  }

  void store(const RowFit& row, std::uint64_t index,
             const formats::EncodeBuffers& buffers) const override {
    if (index == 0) store_at(buffers.tensors[1], 0, scale_);
    std::byte* out = buffers.tensors[0] + (index - buffers.first_row) * columns_;
    for (std::uint64_t k = 0; k < columns_; ++k) out[k] = static_cast<std::byte>(row.codes[k]);
  }

 private:
  std::uint64_t columns_;
  float scale_;
  Codes codes_;
};

}  // namespace

std::unique_ptr<Grid> tensor_grid(const BestLayer& layer, float scale) {
  return std::make_unique<TensorGrid>(layer, scale);
}

}  // namespace parfait::convert
