// What the bytes of a weight that is declared as fp8, and stored as U8, prove about their meaning.
//
// A byte could be an fp8 code or a number from 0 to 255 (ComfyUI converts it as one). Codes of a
// weight are known by three things that nothing else has together: both signs occur alike (bit 7),
// each magnitude occurs alike under both (the histogram of codes 0 to 127 is that of 128 to 255),
// and no code is NaN, nor infinite in e5m2, though those stand next to the largest. Numbers around
// a middle of 128 and int8 codes are thickest at 127, 128 or 255, which would be NaNs; packed
// nibbles and random bytes have NaNs, or other magnitudes under either sign.

#include <array>
#include <cmath>

#include "base/checked.h"
#include "base/result.h"
#include "convert/repair_mends.h"

namespace parfait::convert {
namespace {

constexpr std::uint64_t least_codes = 4096, most_codes = std::uint64_t{4} << 20;
constexpr std::uint64_t at_once = 64 << 10;
constexpr double most_uneven = 0.05;

struct Histogram {
  std::array<std::uint64_t, 256> count{};
  std::uint64_t total = 0;

  void add(ByteSpan bytes) {
    for (const std::byte b : bytes) ++count[std::to_integer<unsigned>(b)];
    total += bytes.size();
  }
};

struct Verdict {
  bool proven = false;
  double negative = 0;  // their share of codes that are not zero
  double mirror = 0;    // the share of codes whose magnitude is commoner under the other sign
};

Verdict judge(const Histogram& histogram, DType dtype) {
  const auto& count = histogram.count;
  const unsigned first_special = dtype == DType::f8_e5m2 ? 0x7c : 0x7f;
  std::uint64_t positive = 0, negative = 0, apart = 0, special = 0, kinds = 0;
  double chance = 0;  // of `apart`, for a histogram that is the same under both signs
  for (unsigned code = 1; code < 128; ++code) {
    const std::uint64_t a = count[code], b = count[code + 128];
    positive += a;
    negative += b;
    apart += a > b ? a - b : b - a;
    chance += std::sqrt(0.64 * static_cast<double>(a + b));
    if (code >= first_special) special += a + b;
    kinds += a + b > 0;
  }
  const std::uint64_t all = positive + negative;
  Verdict verdict;
  if (all < least_codes || kinds < 16) return verdict;
  const auto n = static_cast<double>(all);
  verdict.negative = static_cast<double>(negative) / n;
  verdict.mirror = static_cast<double>(apart) / n;
  verdict.proven = special == 0 && std::fabs(verdict.negative - 0.5) < most_uneven &&
                   verdict.mirror < most_uneven + 2 * chance / n;
  return verdict;
}

}  // namespace

Result<Done> weigh_bytes(const formats::Checkpoint& checkpoint, const ProgressCallback& progress,
                         Proofs& proofs) {
  for (const formats::Layer& layer : checkpoint.layers) {
    const TensorInfo* weight = layer.part("weight");
    if (layer.format->folder != "float8" || !weight || weight->dtype != DType::u8) continue;
    const DType dtype = layer.format->name == "float8_e5m2" ? DType::f8_e5m2 : DType::f8_e4m3;
    const std::uint64_t pieces = ceil_div(weight->bytes, at_once);
    const std::uint64_t step = std::max<std::uint64_t>(1, weight->bytes / most_codes);
    Histogram histogram;
    std::vector<std::byte> scratch;
    for (std::uint64_t piece = 0; piece < pieces; piece += step) {
      if (progress && !progress({piece * at_once, weight->bytes, layer.name}))
        return make_error(ErrorCode::cancelled, "the repair was cancelled");
      TensorInfo part = *weight;
      part.offset += piece * at_once;
      part.bytes = std::min(at_once, weight->bytes - piece * at_once);
      PARFAIT_TRY(const ByteSpan bytes, checkpoint.index->read(part, scratch));
      histogram.add(bytes);
    }
    checkpoint.index->drop(*weight);
    const Verdict verdict = judge(histogram, dtype);
    if (!verdict.proven) continue;  // the finding of its dtype stays
    Proof proof;
    proof.format = layer.format->name;
    proof.stored_as = dtype;
    proof.why = fmt::format(
        "its bytes are fp8 codes: of {}, {:.1f} % are negative, {:.1f} % have a magnitude that is "
        "commoner under the other sign, and none is NaN; ComfyUI would convert each U8 as a number",
        histogram.total, 100 * verdict.negative, 100 * verdict.mirror);
    proofs.emplace(std::string(layer.name), std::move(proof));
  }
  return Done{};
}

}  // namespace parfait::convert
