// Which layers a file declares to be quantised, and how: marker tensors, header tables, the
// file-wide quant_format and the legacy scaled_fp8 marker, merged and matched to the owners of
// weights.
#ifndef PARFAIT_FORMATS_DECLARATIONS_H_
#define PARFAIT_FORMATS_DECLARATIONS_H_

#include <optional>
#include <vector>

#include "formats/format.h"
#include "formats/owners.h"

namespace parfait::formats {

struct Declarations {
  std::vector<std::optional<Marker>> by_owner;  // as Owners::all()
  std::vector<char> refused;  // by owner: a finding says already why its declaration cannot be used
  bool any = false;           // whether the file declares anything at all
};

// Fails only where a marker's bytes cannot be read. Everything else becomes a finding.
Result<Declarations> collect_declarations(const container::TensorIndex& index, Owners& owners,
                                          const DetectOptions& options,
                                          std::vector<Finding>& findings);

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_DECLARATIONS_H_
