// The sixteen levels of a weight: a fixed table, or, for weights whose groups have heavy tails,
// levels fitted to it.
//
// This is comfy-kitchen's choice and its samples: evenly strided rows of at most 2^22 weights,
// divided by their groups' largest; of those, 2^19 drawn by torch's generator with seed 0 for the
// kurtosis, 300,000 for the fit. Sums are in double where torch has float in an order that depends
// on its threads: the choice differs only where the kurtosis is within rounding of the threshold,
// and fitted levels differ by some of their last bits.
#ifndef PARFAIT_FORMATS_ASYM_W4A8_INT8_CODEBOOK_H_
#define PARFAIT_FORMATS_ASYM_W4A8_INT8_CODEBOOK_H_

#include <array>
#include <cstdint>
#include <vector>

#include "formats/encode.h"
#include "parfait/error.h"

namespace parfait::formats {

using Codebook = std::array<float, 16>;  // ascending

const Codebook& fixed_codebook();

// The rows of a weight that are looked at, in order.
std::vector<std::uint64_t> codebook_rows(std::uint64_t rows, std::uint64_t columns);

// From weights divided by their groups' largest magnitudes.
Codebook choose_codebook(const std::vector<float>& normalized);
Codebook fit_codebook(const std::vector<float>& normalized);

// The index of the level nearest to a value, the lower of two as near: by a table of where to start
// looking.
class NearestLevel {
 public:
  explicit NearestLevel(const Codebook& levels);
  unsigned index(float value) const {
    unsigned from = start_[bucket(value)];
    while (from < 16 && levels_[from] < value) ++from;
    const unsigned low = from == 0 ? 0 : from - 1, high = from < 16 ? from : 15;
    const float to_low = value - levels_[low], to_high = levels_[high] - value;
    return magnitude(to_high) < magnitude(to_low) ? high : low;
  }
  float operator()(float value) const { return levels_[index(value)]; }

 private:
  static constexpr int buckets = 256;
  static float magnitude(float value) { return value < 0 ? -value : value; }
  // Rises with the value, so levels of lower buckets are lower values.
  static unsigned bucket(float value) {
    const float scaled = (value + 1.0f) * (buckets / 2);
    const float inside = scaled > 0 ? (scaled < buckets - 1 ? scaled : buckets - 1) : 0;
    return static_cast<unsigned>(inside);
  }

  Codebook levels_;
  std::array<std::uint8_t, buckets> start_{};
};

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_ASYM_W4A8_INT8_CODEBOOK_H_
