#include "kernels/linear/widen.h"

#include <cmath>

#include "base/floats.h"
#include "formats/asym_w4a8_int8/layout.h"
#include "formats/convrot_w4a4/layout.h"
#include "formats/int8_tensorwise/layout.h"
#include "formats/w6a8_int8/layout.h"

namespace parfait::kernels {

std::int8_t widened(float level, float scale) {
  const float scaled = level * scale;
  if (std::isnan(scaled)) return 0;
  const float clamped = scaled > 127.0f ? 127.0f : scaled < -127.0f ? -127.0f : scaled;
  return static_cast<std::int8_t>(std::nearbyint(clamped));
}

AlignedBytes widening_tables(std::span<const float> levels, std::uint8_t flip) {
  AlignedBytes tables(scale_codes * levels.size());
  std::byte* out = tables.data();
  for (unsigned scale = 0; scale < scale_codes; ++scale) {
    const float s = e4m3_to_float(static_cast<std::uint8_t>(scale));
    for (const float level : levels)
      *out++ = static_cast<std::byte>(widened(level, s) ^ static_cast<std::int8_t>(flip));
  }
  return tables;
}

unsigned weight_code(WeightCode code, const std::byte* row, std::uint64_t columns,
                     std::uint64_t column) {
  if (code == WeightCode::w6a8) return w6a8_codes(row, columns, column / 4 * 4).codes[column % 4];
  const unsigned byte = std::to_integer<unsigned>(row[column / 2]);
  return column % 2 == 0 ? byte & 15 : byte >> 4;
}

std::uint64_t row_bytes(WeightCode code, std::uint64_t columns) {
  switch (code) {
    case WeightCode::int8:
      return Int8Weight::row_bytes(columns);
    case WeightCode::int4:
      return Int4Weight::row_bytes(columns);
    case WeightCode::w4a8:
      return AsymW4A8Weight::row_bytes(columns);
    case WeightCode::w6a8:
      return W6A8Weight::row_bytes(columns);
  }
  return 0;
}

}  // namespace parfait::kernels
