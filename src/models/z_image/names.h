// MODEL.md's table of names, as data.
#ifndef PARFAIT_MODELS_Z_IMAGE_NAMES_H_
#define PARFAIT_MODELS_Z_IMAGE_NAMES_H_

#include "models/names.h"
#include "models/z_image/config.h"

namespace parfait::models::z_image {

const NameTable& names();

}  // namespace parfait::models::z_image

#endif  // PARFAIT_MODELS_Z_IMAGE_NAMES_H_
