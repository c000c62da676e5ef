// int8_tensorwise and convrot_w4a4 with a scale for each row, in float: what their encoders do, by
// the kernels that quantise an activation, since the formula is the same. The bytes are the
// encoders', which a test holds. Each panel is written, read back and measured while it is in the
// cache: the squared error against the rotated weight (rotation keeps lengths), the largest error
// rotated back.
#ifndef PARFAIT_CONVERT_FAST_ROWS_H_
#define PARFAIT_CONVERT_FAST_ROWS_H_

#include "convert/encode_layer.h"
#include "convert/error_sums.h"
#include "runtime/layer_rows.h"

namespace parfait::convert {

// Whether there is such a path for this work.
bool has_fast_rows(const EncodeWork& work);
// Writes the weight and its scales. rows: of work.layer.
Result<ErrorSums> encode_fast_rows(const EncodeWork& work, runtime::LayerRows& rows,
                                   std::uint64_t panel_rows, const EncodeMeans& means);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_FAST_ROWS_H_
