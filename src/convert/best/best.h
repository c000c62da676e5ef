// The values of a layer's tensors, better than by absmax: `--quality best` and `--calibration`.
//
// This is formats::Encoder's survey() and encode() once more (encode.h): the same tensors, dtypes,
// shapes and marker, and the same way to call it; refusal(), tensors() and marker() stay the
// format's own. Only the codes and scales differ. Two things can be made small:
//
//   without inputs   the squared error of the weight: scales by search and alternating least
//                    squares, codes to the nearest level. Comfy-kitchen's own scales are always
//                    among the candidates, so that no row's error is larger than theirs (with the
//                    same codebook or tensor scale, which are chosen by the error of a sample).
//   with inputs      the squared error of the layer's outputs on rows of real inputs: scales as
//                    above, weighted by the inputs' energy; codes column by column, each column's
//                    error carried into the columns not yet rounded (GPTQ).
//
// How to use it, layer by layer:
//
//   BestLayer layer{format, shape, settings, nullptr};
//   if (!has_best(format.name)) ...           // use the format's own encoder
//   if (calibration && has_calibrated(format.name) && calibration->find(name)) {
//     PARFAIT_TRY(inputs, calibration->inputs(name, shape, settings, options, threads));
//     layer.inputs = &inputs;                 // must outlive the calls below
//   }
//   PARFAIT_TRY(BestSurvey survey, survey_best(layer, reader));          // reads rows, maybe twice
//   encode_best(layer, survey, first, count, w, buffers);                // any rows, any threads
//
// Bytes depend on neither the ranges, the threads nor the machine: float and double operations in
// a fixed order. settings.arithmetic is not looked at: rotation and everything else are in float.
// Memory of one call of encode_best beside the caller's panel: about 8 bytes a column and 100 KB of
// tables; with inputs as much as 32 rows of the panel again. survey_best: one panel of rows, 1 MB
// or one row. Panels of 32 rows or more are the fastest with inputs; a panel without is as fast at
// any size, but for tables that each call makes (0.2 ms), so some hundred thousand weights are
// enough. Weights must be finite (formats::all_finite).
#ifndef PARFAIT_CONVERT_BEST_BEST_H_
#define PARFAIT_CONVERT_BEST_BEST_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "convert/best/inputs.h"
#include "formats/encode.h"
#include "formats/format.h"
#include "parfait/error.h"

namespace parfait::convert {

// Formats that something can be gained for: int8_tensorwise, convrot_w4a4, asym_w4a8_int8,
// w6a8_int8, nvfp4, mxfp8, float8_e4m3fn, float8_e5m2; and those that inputs help, the same but for
// float8_*.
bool has_best(std::string_view format);
bool has_calibrated(std::string_view format);

struct BestLayer {
  const formats::Format* format = nullptr;
  formats::WeightShape weight;
  formats::EncodeSettings settings;
  const Inputs* inputs = nullptr;  // null: the weight's error counts
};

// What encode_best() needs to know of the whole weight.
struct BestSurvey {
  float scale = 0;                                // one scale for the tensor, where there is one
  std::optional<std::array<float, 16>> codebook;  // asym_w4a8_int8
};

// Reads rows where the format has something for the whole tensor, else returns at once.
Result<BestSurvey> survey_best(const BestLayer& layer, const formats::RowReader& rows);

// Encodes rows [first, first + count), which w holds in the original basis; w is overwritten.
void encode_best(const BestLayer& layer, const BestSurvey& survey, std::uint64_t first,
                 std::uint64_t count, float* w, const formats::EncodeBuffers& buffers);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_BEST_H_
