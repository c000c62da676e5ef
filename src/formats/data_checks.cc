#include "formats/data_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace parfait::formats {
namespace {

bool all_zero(ByteSpan bytes) {
  return std::ranges::all_of(bytes, [](std::byte b) { return b == std::byte{0}; });
}

template <class Test>
Tally tally_values(const Values& values, Test test) {
  Tally tally;
  for (std::uint64_t i = 0; i < values.size(); ++i)
    if (test(values[i])) tally.add(i);
  return tally;
}

// NaN and infinities of IEEE types: all exponent bits are set.
template <class Bits>
Tally tally_exponents(ByteSpan bytes, Bits exponent) {
  Tally tally;
  for (std::uint64_t i = 0; i < bytes.size() / sizeof(Bits); ++i)
    if ((load_at<Bits>(bytes.data(), i) & exponent) == exponent) tally.add(i);
  return tally;
}

}  // namespace

void report_tally(const LayerData& data, std::string_view role, const Tally& tally,
                  Severity severity, ErrorCode code, std::string_view what, FindingSink& sink) {
  if (tally.count == 0) return;
  sink.add(severity, code, data.layer->part(role)->name,
           fmt::format("{}, the first at index {}", tally.count, tally.first), "none",
           fmt::format("the {} has {}", role, what));
}

void check_finite(const LayerData& data, std::string_view role, FindingSink& sink,
                  DType bytes_are) {
  const TensorInfo* tensor = data.layer->part(role);
  if (!tensor) return;
  const Tally bad =
      tensor->dtype == DType::f32   ? tally_exponents<std::uint32_t>(data.part(role), 0x7f800000u)
      : tensor->dtype == DType::f16 ? tally_exponents<std::uint16_t>(data.part(role), 0x7c00u)
      : tensor->dtype == DType::bf16
          ? tally_exponents<std::uint16_t>(data.part(role), 0x7f80u)
          : tally_values(Values(data, role, bytes_are), [](float v) { return !std::isfinite(v); });
  report_tally(data, role, bad, Severity::error, ErrorCode::data_not_finite,
               "NaN or infinite values", sink);
}

void check_scale_values(const LayerData& data, std::string_view role, Zeros zeros,
                        FindingSink& sink, DType bytes_are) {
  check_finite(data, role, sink, bytes_are);
  const Values values(data, role, bytes_are);
  report_tally(data, role, tally_values(values, [](float v) { return v < 0; }), Severity::error,
               ErrorCode::data_zero_scale, "negative values", sink);
  if (zeros == Zeros::refused)
    report_tally(data, role, tally_values(values, [](float v) { return v == 0; }), Severity::error,
                 ErrorCode::data_zero_scale, "zeros, which no writer makes", sink);
}

void check_zero_scaled_rows(const LayerData& data, std::string_view role,
                            std::uint64_t bytes_per_row, FindingSink& sink) {
  const Values scales(data, role);
  if (scales.size() == 0) return;
  const ByteSpan weight = data.part("weight");
  Tally lost;
  for (std::uint64_t row = 0; row < data.layer->rows; ++row)
    if (scales.of_row(row) == 0 && !all_zero(weight.subspan(row * bytes_per_row, bytes_per_row)))
      lost.add(row);
  report_tally(data, role, lost, Severity::error, ErrorCode::data_zero_scale,
               "zeros for rows whose codes are not zero", sink);
}

void check_not_all_zero(const LayerData& data, FindingSink& sink) {
  const ByteSpan bytes = data.part("weight");
  if (bytes.empty() || !all_zero(bytes)) return;
  sink.add(Severity::warning, ErrorCode::data_all_zero, data.layer->part("weight")->name,
           fmt::format("{} bytes", bytes.size()), "",
           "every byte of the weight is zero, as in a hole that an interrupted copy leaves");
}

ByteCounts count_bytes(ByteSpan bytes) {
  // Four tables: equal neighbours would otherwise wait for each other's store.
  std::array<ByteCounts, 4> counts = {};
  std::size_t i = 0;
  for (; i + 4 <= bytes.size(); i += 4)
    for (std::size_t j = 0; j < 4; ++j) ++counts[j][std::to_integer<unsigned>(bytes[i + j])];
  for (; i < bytes.size(); ++i) ++counts[0][std::to_integer<unsigned>(bytes[i])];
  for (std::size_t b = 0; b < 256; ++b) counts[0][b] += counts[1][b] + counts[2][b] + counts[3][b];
  return counts[0];
}

NibbleCounts count_nibbles(ByteSpan bytes) {
  const ByteCounts counts = count_bytes(bytes);
  NibbleCounts nibbles = {};
  for (unsigned b = 0; b < counts.size(); ++b) {
    nibbles[b & 15] += counts[b];
    nibbles[b >> 4] += counts[b];
  }
  return nibbles;
}

void check_bell_shape(const LayerData& data, std::span<const CodeCount> codes, double least_ratio,
                      FindingSink& sink) {
  constexpr std::uint64_t few = 4096;
  float largest = 0;
  for (const CodeCount& code : codes) largest = std::fmax(largest, std::fabs(code.value));
  std::uint64_t inner = 0, outer = 0, all = 0;
  for (const CodeCount& code : codes) {
    const float magnitude = std::fabs(code.value);
    if (magnitude < 0.25f * largest) inner += code.count;
    if (magnitude > 0.75f * largest) outer += code.count;
    all += code.count;
  }
  if (all <= few || static_cast<double>(inner) >= least_ratio * static_cast<double>(outer)) return;
  sink.add(
      Severity::warning, ErrorCode::data_implausible, data.layer->part("weight")->name,
      fmt::format("{} codes in the inner quarter of the range, {} in the outer one", inner, outer),
      "most of them near zero",
      "the codes are spread flat, as bytes of another packing or of no weights are");
}

}  // namespace parfait::formats
