// nvfp4 and mxfp8: small floats with a scale for each block of columns.
//
// A block's scale has few values near the one that its largest value asks for, so the best of them
// is found by trying. For nvfp4, whose levels are far apart at the top (4 and 6), it is often one
// that takes the largest value to 4, or beyond 6; for mxfp8 it is hardly ever another than
// comfy-kitchen's, since e4m3 is as fine on either side of a power of two.

#include <cmath>
#include <limits>

#include "base/bytes.h"
#include "base/floats.h"
#include "convert/best/grid.h"
#include "convert/best/sums.h"
#include "formats/common.h"
#include "formats/mxfp8/layout.h"
#include "formats/nvfp4/layout.h"

namespace parfait::convert {
namespace {

// The value of e2m1 that is nearest to x >= 0; 6 beyond.
float e2m1_magnitude(float x) {
  const auto step = [x](float from, float by) { return x > from ? by : 0.0f; };
  return ((step(0.25f, 0.5f) + step(0.75f, 0.5f)) + (step(1.25f, 0.5f) + step(1.75f, 0.5f))) +
         ((step(2.5f, 1.0f) + step(3.5f, 1.0f)) + step(5.0f, 2.0f));
}

struct Nvfp4 {
  static constexpr std::uint64_t block = Nvfp4Weight::block;
  static constexpr int below = 4, above = 6, least_byte = 1, most_byte = 126;

  static float scale(std::uint8_t byte, float tensor) { return tensor * e4m3_to_float(byte); }
  static int plain_byte(float absmax, float tensor) {
    return tensor > 0 ? float_to_e4m3(std::min(absmax / 6.0f / tensor, 448.0f)) : 0;
  }
  static float magnitude(float x) { return e2m1_magnitude(x); }
  static std::uint8_t code(float x) { return float_to_e2m1(x); }
  static float value(std::uint8_t code) { return e2m1_to_float(code); }
  static void store(const std::vector<std::uint8_t>& codes, std::byte* out) {
    for (std::size_t k = 0; k < codes.size(); k += 2)
      out[k / 2] = static_cast<std::byte>(codes[k] << 4 | codes[k + 1]);
  }
  static std::uint64_t row_bytes(std::uint64_t columns) { return Nvfp4Weight::row_bytes(columns); }
};

struct Mxfp8 {
  static constexpr std::uint64_t block = Mxfp8Weight::block;
  static constexpr int below = 1, above = 1, least_byte = 1, most_byte = 254;

  static float scale(std::uint8_t byte, float) { return e8m0_to_float(byte); }
  static int plain_byte(float absmax, float) {
    int exponent = 0;  // of a fraction in [0.5, 1)
    const float fraction = std::frexp(absmax / 448.0f, &exponent);
    return std::clamp((fraction == 0.5f ? exponent - 1 : exponent) + 127, 0, 254);
  }
  static float magnitude(float x) { return round_to<e4m3>(x); }
  static std::uint8_t code(float x) { return float_to_e4m3(x); }
  static float value(std::uint8_t code) { return e4m3_to_float(code); }
  static void store(const std::vector<std::uint8_t>& codes, std::byte* out) {
    for (std::size_t k = 0; k < codes.size(); ++k) out[k] = static_cast<std::byte>(codes[k]);
  }
  static std::uint64_t row_bytes(std::uint64_t columns) { return columns; }
};

template <class Format>
class BlockGrid final : public Grid {
 public:
  BlockGrid(const BestLayer& layer, float scale)
      : rows_(layer.weight.rows), columns_(layer.weight.columns), scale_(scale) {}

  void fit(Row w, Row energy, RowFit& row) const override {
    row.scale = scale_;
    row.codes.resize(columns_);
    row.groups.resize(columns_ / Format::block);
    for (std::size_t b = 0; b < row.groups.size(); ++b)
      row.groups[b] = best_byte(w.data() + b * Format::block, energy.data() + b * Format::block);
    for (std::uint64_t k = 0; k < columns_; ++k) nearest(w[k], k, row);
  }

  float nearest(float w, std::uint64_t column, RowFit& row) const override {
    const float scale = Format::scale(row.groups[column / Format::block], scale_);
    const std::uint8_t code = scale > 0 ? Format::code(w / scale) : std::uint8_t{0};
    row.codes[column] = code;
    return Format::value(code) * scale;
  }

  float value(std::uint64_t column, const RowFit& row) const override {
    return Format::value(row.codes[column]) *
           Format::scale(row.groups[column / Format::block], scale_);
  }

  void store(const RowFit& row, std::uint64_t index,
             const formats::EncodeBuffers& buffers) const override {
    if (buffers.tensors.size() > 2 && index == 0) store_at(buffers.tensors[2], 0, scale_);
    const formats::BlockScales scales{rows_, columns_ / Format::block};
    for (std::size_t b = 0; b < row.groups.size(); ++b)
      buffers.tensors[1][scales.offset(index, b)] = static_cast<std::byte>(row.groups[b]);
    Format::store(row.codes,
                  buffers.tensors[0] + (index - buffers.first_row) * Format::row_bytes(columns_));
  }

 private:
  std::uint8_t best_byte(const float* w, const float* energy) const {
    std::array<float, Format::block> magnitude;
    for (std::size_t k = 0; k < Format::block; ++k) magnitude[k] = std::fabs(w[k]);
    const float absmax = largest(magnitude);
    if (!(absmax > 0)) return 0;
    const int plain = Format::plain_byte(absmax, scale_);
    double least = std::numeric_limits<double>::infinity();
    int best = plain;
    const auto look = [&](int byte) {
      const float scale = Format::scale(static_cast<std::uint8_t>(byte), scale_);
      const double error = sum_of<double>(Format::block, [&](std::size_t k) {
        const float off =
            magnitude[k] - (scale > 0 ? Format::magnitude(magnitude[k] / scale) * scale : 0.0f);
        return static_cast<double>(energy[k] * off * off);
      });
      if (!(error < least)) return;
      least = error;
      best = byte;
    };
    look(plain);  // first, so that nothing else is taken without a gain
    for (int byte = std::max(Format::least_byte, plain - Format::below);
         byte <= std::min(Format::most_byte, plain + Format::above); ++byte)
      look(byte);
    return static_cast<std::uint8_t>(best);
  }

  std::uint64_t rows_, columns_;
  float scale_;
};

}  // namespace

std::unique_ptr<Grid> block_grid(const BestLayer& layer, float scale) {
  if (layer.format->name == "nvfp4") return std::make_unique<BlockGrid<Nvfp4>>(layer, scale);
  return std::make_unique<BlockGrid<Mxfp8>>(layer, scale);
}

}  // namespace parfait::convert
