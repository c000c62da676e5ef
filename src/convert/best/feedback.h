// Rounding with error feedback (GPTQ): the columns of a row are rounded in turn, and what each
// loses is made up for, as far as the inputs allow, by those that are still to come.
//
// With U from Inputs, the columns in its order: the error of column i, e = (w[i] - value) /
// U[i][i], is taken from the columns behind it, w[j] -= e·U[i][j]. Then Σe² is the squared error of
// the outputs over the rows of inputs (plus the damping's part), exactly.
#ifndef PARFAIT_CONVERT_BEST_FEEDBACK_H_
#define PARFAIT_CONVERT_BEST_FEEDBACK_H_

#include <cstdint>
#include <span>

#include "convert/best/grid.h"
#include "convert/best/inputs.h"

namespace parfait::convert {

// fits.size() rows of w, each with scales fitted; sets the codes and returns nothing else. w is
// left as it was. Each row depends on itself alone.
void round_with_feedback(const Grid& grid, const Inputs& inputs, const float* w,
                         std::span<RowFit> fits, std::span<double> errors);

}  // namespace parfait::convert

#endif  // PARFAIT_CONVERT_BEST_FEEDBACK_H_
