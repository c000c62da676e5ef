#include "formats/relative_encoding.h"

#include "formats/relative_scales.h"

namespace parfait::formats {

float torch_sum(std::span<const float> values) {
  constexpr std::size_t parts = 4;
  const std::size_t lanes = values.size() < 8 ? 1 : 8;
  const std::size_t vectors = values.size() / lanes, whole = vectors / parts * parts;
  std::array<std::array<float, 8>, parts> sums{};
  for (std::size_t i = 0; i < whole; ++i)
    for (std::size_t lane = 0; lane < lanes; ++lane)
      sums[i % parts][lane] += values[i * lanes + lane];
  for (std::size_t i = whole; i < vectors; ++i)
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[0][lane] += values[i * lanes + lane];
  for (std::size_t part = 1; part < parts; ++part)
    for (std::size_t lane = 0; lane < lanes; ++lane) sums[0][lane] += sums[part][lane];
  float sum = 0;
  for (std::size_t lane = 0; lane < lanes; ++lane) sum += sums[0][lane];
  return sum;
}

Int8Grid::Int8Grid(std::span<const float> levels)
    : levels_(levels), count_(static_cast<unsigned>(levels.size())), of_byte_(128) {}

const Int8Grid::Values& Int8Grid::of(std::uint8_t s_rel) {
  Values& values = of_byte_[s_rel & 127u];
  if (values.made) return values;
  const float scale = e4m3_to_float(s_rel);
  for (unsigned c = 0; c < count_; ++c) values.value[c] = int8_level(levels_[c], scale);
  unsigned c = 0;
  for (int i = -128; i <= 128; ++i) {
    while (c < count_ && values.value[c] < static_cast<float>(i)) ++c;
    values.first_from[static_cast<unsigned>(i + 128)] = static_cast<std::uint8_t>(c);
  }
  values.made = true;
  return values;
}

}  // namespace parfait::formats
