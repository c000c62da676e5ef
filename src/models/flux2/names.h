// MODEL.md's table of names, as data.
#ifndef PARFAIT_MODELS_FLUX2_NAMES_H_
#define PARFAIT_MODELS_FLUX2_NAMES_H_

#include "models/flux2/config.h"
#include "models/names.h"

namespace parfait::models::flux2 {

const NameTable& names();

}  // namespace parfait::models::flux2

#endif  // PARFAIT_MODELS_FLUX2_NAMES_H_
