// That the emulated processor offers what it is there to offer, so that the tests beside this one
// don't pass for want of a variant to test.

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/linear/linear.h"

namespace parfait {
namespace {

TEST(Arm, the_processor_offers_the_expected_set_at_best) {
  const char* expected = std::getenv("PARFAIT_EXPECT_ISA");
  ASSERT_NE(expected, nullptr);
  EXPECT_EQ(isa_name(machine_isas().back()), expected);
}

TEST(Arm, every_code_has_both_variants) {
  for (const auto code : {kernels::WeightCode::int8, kernels::WeightCode::int4,
                          kernels::WeightCode::w4a8, kernels::WeightCode::w6a8}) {
    const auto list = kernels::linear_kernels(code);
    ASSERT_EQ(list.size(), 3u);
    EXPECT_EQ(list[0].isa, Isa::neon_i8mm);
    EXPECT_EQ(list[1].isa, Isa::neon_dotprod);
  }
}

}  // namespace
}  // namespace parfait
