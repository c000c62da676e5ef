// What formats check of values: one finding for each kind of fault and tensor, with how often it
// occurs and where first. Loops over weights go by table, a byte at a time.
#ifndef PARFAIT_FORMATS_DATA_CHECKS_H_
#define PARFAIT_FORMATS_DATA_CHECKS_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/common.h"

namespace parfait::formats {

// How often something occurs, and where first.
struct Tally {
  std::uint64_t count = 0, first = 0;
  void add(std::uint64_t i) {
    if (count++ == 0) first = i;
  }
};
// Nothing where the tally is empty. `what` completes "the weight has ...".
void report_tally(const LayerData& data, std::string_view role, const Tally& tally,
                  Severity severity, ErrorCode code, std::string_view what, FindingSink& sink);

// NaN and infinities of a float part of any dtype.
void check_finite(const LayerData& data, std::string_view role, FindingSink& sink,
                  DType bytes_are = DType::u8);
// The same of scales, and negative ones; zeros too where no writer makes them.
enum class Zeros { allowed, refused };
void check_scale_values(const LayerData& data, std::string_view role, Zeros zeros,
                        FindingSink& sink, DType bytes_are = DType::u8);
// Rows whose codes are not all zero bytes under a scale of zero.
void check_zero_scaled_rows(const LayerData& data, std::string_view role,
                            std::uint64_t bytes_per_row, FindingSink& sink);
void check_not_all_zero(const LayerData& data, FindingSink& sink);

using ByteCounts = std::array<std::uint64_t, 256>;
ByteCounts count_bytes(ByteSpan bytes);
using NibbleCounts = std::array<std::uint64_t, 16>;
NibbleCounts count_nibbles(ByteSpan bytes);

// A code's value, in any unit, and how often it occurs.
struct CodeCount {
  float value = 0;
  std::uint64_t count = 0;
};
// Codes of weights crowd around zero: a rotated row is close to normal whatever it was before, and
// trained weights are close to it without. Codes in the inner quarter of the range are to outnumber
// those in the outer one by least_ratio; spread flat they do not at all, and then they are the
// bytes of another packing, or of no weights. Layers of 4096 codes and fewer are not judged.
void check_bell_shape(const LayerData& data, std::span<const CodeCount> codes, double least_ratio,
                      FindingSink& sink);

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_DATA_CHECKS_H_
