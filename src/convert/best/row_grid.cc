// int8_tensorwise and convrot_w4a4: integer codes and one scale a row.
//
// For codes q that are given, the scale with the least error is s = Σewq / Σeq², and the error with
// it Σew² - (Σewq)² / Σeq² (e: the columns' energy). So one pass over a row for a scale gives the
// codes that are nearest under it and the least error that any scale can have with them. Scales on
// a grid below the absmax one are looked at so, and the best is improved in turn: scale for the
// codes, codes for the scale (alternating least squares).

#include "base/bytes.h"
#include "convert/best/grid.h"
#include "convert/best/sums.h"
#include "formats/convrot_w4a4/layout.h"

namespace parfait::convert {
namespace {

struct RowRules {
  float limit = 127;        // codes are integers of -limit .. limit
  float least_clip = 0.8f;  // scales looked at, as a part of absmax / limit: from here
  float most_clip = 1.04f;  // up to here
  unsigned clips = 12;      // in so many steps
};
constexpr RowRules int8_rules{}, int4_rules{7, 0.46f, 1.06f, 30};
constexpr unsigned refinements = 12;

struct Fitted {
  float scale = 0, gain = -1;  // the best scale for the codes, and by how much it lessens Σew²
};

class RowGrid final : public Grid {
 public:
  RowGrid(const BestLayer& layer, const RowRules& rules)
      : columns_(layer.weight.columns), rules_(rules) {}

  void fit(Row w, Row energy, RowFit& row) const override {
    const float absmax = largest(w);
    // As comfy-kitchen has it, with its floors.
    const float plain =
        is_int4() ? std::max(absmax, 1e-10f) / 7.0f : std::max(absmax / 127.0f, 1e-30f);
    row.scale = plain;
    row.codes.resize(columns_);
    if (absmax > 0) {
      const float scale = search(w, energy, plain);
      if (scale > 0 && error(w, energy, scale) < error(w, energy, plain)) row.scale = scale;
    }
    for (std::size_t k = 0; k < columns_; ++k) nearest(w[k], k, row);
  }

  float nearest(float w, std::uint64_t column, RowFit& row) const override {
    const float q = code(w, row.scale);
    row.codes[column] = static_cast<std::uint8_t>(static_cast<std::int8_t>(q));
    return q * row.scale;
  }

  float value(std::uint64_t column, const RowFit& row) const override {
    return static_cast<float>(static_cast<std::int8_t>(row.codes[column])) * row.scale;
  }

  void store(const RowFit& row, std::uint64_t index,
             const formats::EncodeBuffers& buffers) const override {
    store_at(buffers.tensors[1], index, row.scale);
    const std::uint64_t row_bytes = is_int4() ? Int4Weight::row_bytes(columns_) : columns_;
    std::byte* out = buffers.tensors[0] + (index - buffers.first_row) * row_bytes;
    for (std::uint64_t k = 0; k < row_bytes; ++k)
      out[k] = static_cast<std::byte>(
          is_int4() ? (row.codes[2 * k] & 15) | (row.codes[2 * k + 1] & 15) << 4 : row.codes[k]);
  }

 private:
  bool is_int4() const { return rules_.limit == 7; }
  float code(float w, float scale) const {
    return nearest_integer(clamped(w / scale, rules_.limit));
  }

  double error(Row w, Row energy, float scale) const {
    return sum_of<double>(columns_, [&](std::size_t k) {
      const float off = w[k] - code(w[k], scale) * scale;
      return static_cast<double>(energy[k] * off * off);
    });
  }

  Fitted look(Row w, Row energy, float scale) const {
    const float inverse = 1.0f / scale;
    std::array<float, lanes> products{}, squares{};
    std::size_t k = 0;
    const auto add = [&](std::size_t j, std::size_t at) {
      const float q = nearest_integer(clamped(w[at] * inverse, rules_.limit));
      const float weighted = energy[at] * q;
      products[j] += weighted * w[at];
      squares[j] += weighted * q;
    };
    for (; k + lanes <= columns_; k += lanes)
      for (std::size_t j = 0; j < lanes; ++j) add(j, k + j);
    for (std::size_t j = 0; k + j < columns_; ++j) add(j, k + j);
    const float product = join(products), square = join(squares);
    if (!(square > 0)) return {};
    const float best = product / square;
    return {best, best * product};
  }

  float search(Row w, Row energy, float plain) const {
    Fitted best = look(w, energy, plain);
    for (unsigned i = 0; i < rules_.clips; ++i) {
      const float clip =
          rules_.least_clip + (rules_.most_clip - rules_.least_clip) *
                                  (static_cast<float>(i) / static_cast<float>(rules_.clips - 1));
      const Fitted found = look(w, energy, plain * clip);
      if (found.gain > best.gain) best = found;
    }
    for (unsigned i = 0; i < refinements; ++i) {
      const Fitted found = look(w, energy, best.scale);
      if (!(found.gain > best.gain)) break;
      best = found;
    }
    return best.scale;
  }

  std::uint64_t columns_;
  RowRules rules_;
};

}  // namespace

std::unique_ptr<Grid> row_grid(const BestLayer& layer) {
  return std::make_unique<RowGrid>(layer,
                                   layer.format->name == "convrot_w4a4" ? int4_rules : int8_rules);
}

}  // namespace parfait::convert
