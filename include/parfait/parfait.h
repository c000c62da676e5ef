// Parfait: diffusion checkpoints whose layers are stored in different low-bit formats, opened,
// checked, planned and run.
//
//   #include <parfait/parfait.h>
//
//   #include <iostream>
//
//   int main(int, char** argv) {
//     auto file = parfait::open(argv[1]);
//     if (!file) return std::cerr << file.error().message << '\n', 2;
//     for (parfait::Layer layer : *file) std::cout << layer.line() << '\n';
//     auto report = parfait::check(*file);
//     if (!report || !report->sound()) return 1;
//     auto plan = parfait::make_plan(*report->checked);
//     auto model = plan ? parfait::load(*plan) : plan.error();
//     if (!model) return std::cerr << model.error().message << '\n', 1;
//     std::cout << model->resident_bytes() << " bytes resident\n";
//   }
#ifndef PARFAIT_PARFAIT_H_
#define PARFAIT_PARFAIT_H_

#include "parfait/capture.h"
#include "parfait/checkpoint.h"
#include "parfait/convert.h"
#include "parfait/dtype.h"
#include "parfait/error.h"
#include "parfait/generate.h"
#include "parfait/model.h"
#include "parfait/plan.h"
#include "parfait/quantize.h"
#include "parfait/repair.h"
#include "parfait/shard.h"
#include "parfait/text.h"
#include "parfait/verify.h"
#include "parfait/writer.h"

#endif  // PARFAIT_PARFAIT_H_
