// How far a checkpoint's decoded weights are from another's: layer by layer, and plain tensor by
// plain tensor, whatever formats the two store them in. docs/verify.md says what the numbers mean.
#ifndef PARFAIT_VERIFY_H_
#define PARFAIT_VERIFY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "parfait/checkpoint.h"
#include "parfait/error.h"

namespace parfait {

enum class Comparison {
  compared,
  only_in_a,
  only_in_b,
  shape,  // of other shapes, so that nothing could be compared
};
std::string_view comparison_name(Comparison comparison);  // "only in a"

struct LayerError {
  std::string name;    // of the layer, or of a bias or a plain tensor; in b where only b has it
  std::string b_name;  // where b has it under another prefix
  std::string a, b;    // format, or dtype; empty where there is none
  std::string a_shape, b_shape;
  Comparison comparison = Comparison::compared;
  std::uint64_t values = 0;

  // Of b against a: √(Σ(a - b)² / Σa²), and the largest |a - b|.
  double relative_l2 = 0;
  double max_error = 0;
  std::uint64_t not_finite = 0;  // values that are NaN or infinite in one of the two
  double limit = 0;              // of relative_l2

  double sqnr_db() const;  // -20·log10(relative_l2): infinite where nothing differs
  bool exceeds() const {
    return comparison != Comparison::compared || not_finite > 0 || !(relative_l2 <= limit);
  }
};

struct VerifyOptions {
  // Of layers and tensors to compare, by name (* and ?).
  std::string pattern = "*";
  // The relative L2 that is allowed; unset: what is usual for the formats, usual_error().
  std::optional<double> threshold;
  unsigned threads = 0;  // 0: as many as the machine has. Results never depend on the number.
  ProgressCallback progress;
};

struct VerifyReport {
  std::vector<LayerError> layers;  // farthest above its limit first
  std::uint64_t values = 0;        // compared
  std::uint64_t bytes = 0;         // of both files, read
  double relative_l2 = 0;          // of all values compared
  std::uint64_t exceeding = 0;     // layers and tensors
};

// a is the reference. Layers are matched by name, with or without "model.diffusion_model." in
// front. Reads each weight once and holds some rows of it at a time.
Result<VerifyReport> verify(const CheckedCheckpoint& a, const CheckedCheckpoint& b,
                            const VerifyOptions& options = {});

// The relative L2 below which a weight stays that was encoded in this format well enough.
double usual_error(std::string_view format);

}  // namespace parfait

#endif  // PARFAIT_VERIFY_H_
