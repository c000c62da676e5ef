// Declarations of layers as JSON: marker tensors, header tables. Findings say what is malformed; a
// result is there only if nothing is.
#ifndef PARFAIT_FORMATS_MARKERS_H_
#define PARFAIT_FORMATS_MARKERS_H_

#include <optional>
#include <string_view>

#include "formats/format.h"

namespace parfait::formats {

// An object as Comfy writes it, or a bare string, which some files have in place of {"format":
// string}. place names the tensor or table for findings. (parse_marker, for bytes, stands in
// format.h.)
std::optional<Marker> marker_from_json(io::Json json, FindingSink& sink, std::string_view place);

}  // namespace parfait::formats

#endif  // PARFAIT_FORMATS_MARKERS_H_
