// The report of `parfait quantize` as one HTML page that needs nothing beside it.
#ifndef PARFAIT_CLI_QUANTIZE_HTML_H_
#define PARFAIT_CLI_QUANTIZE_HTML_H_

#include <string>

#include "parfait/quantize.h"

namespace parfait::cli {

// title: the output's name.
std::string quantize_html(const std::string& title, const QuantizePlan& plan,
                          const QuantizeReport& report);

}  // namespace parfait::cli

#endif  // PARFAIT_CLI_QUANTIZE_HTML_H_
