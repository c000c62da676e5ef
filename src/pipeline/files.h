// Where the parts of a pipeline lie.
#ifndef PARFAIT_PIPELINE_FILES_H_
#define PARFAIT_PIPELINE_FILES_H_

#include "parfait/generate.h"

namespace parfait::pipeline {

// What is not given is looked for in model_dir; the error says where, and which option names it.
Result<PipelineFiles> find_files(const PipelineFiles& given);

}  // namespace parfait::pipeline

#endif  // PARFAIT_PIPELINE_FILES_H_
