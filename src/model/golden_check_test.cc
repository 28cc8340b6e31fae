// Goal: the whole network equals the goldens, and itself in every chunking. Method: the golden set
// of tests/golden.
#include "model/golden_check.h"

#include <gtest/gtest.h>
#include <string>

namespace galley::model {
namespace {

TEST(GoldenCheck, ThisSet) {
  const auto device = kernels::create_cpu_device(2);
  const auto outcomes = check_golden_set(std::string(GALLEY_TESTS_DIR) + "/golden", *device);
  ASSERT_TRUE(outcomes) << to_string(outcomes.error());
  EXPECT_GT(outcomes->size(), 400U);
  for (const GoldenOutcome& outcome : *outcomes) {
    EXPECT_TRUE(outcome.passed) << outcome.name << ": max " << outcome.max_error
                                << ", relative rms " << outcome.relative_rms << "; "
                                << outcome.detail;
  }
}

}  // namespace
}  // namespace galley::model
