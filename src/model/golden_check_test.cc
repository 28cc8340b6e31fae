// Goal: the whole network equals the goldens, and itself in every chunking. Method: the golden set
// of tests/golden, file by file.
#include "model/golden_check.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <string>

namespace galley::model {
namespace {

class GoldenCheck : public testing::TestWithParam<const char*> {};

TEST_P(GoldenCheck, Passes) {
  const auto device = kernels::create_cpu_device(2);
  const auto outcomes =
      check_golden_set(std::string(GALLEY_TESTS_DIR) + "/golden", *device, GetParam());
  ASSERT_TRUE(outcomes) << to_string(outcomes.error());
  EXPECT_GT(outcomes->size(), 5U);
  for (const GoldenOutcome& outcome : *outcomes) {
    EXPECT_TRUE(outcome.passed) << outcome.name << ": max " << outcome.max_error
                                << ", relative rms " << outcome.relative_rms << "; "
                                << outcome.detail;
  }
}

INSTANTIATE_TEST_SUITE_P(,
                         GoldenCheck,
                         testing::Values("ops",
                                         "v4/short",
                                         "v41/short",
                                         "v4/short_act",
                                         "v41/short_act",
                                         "v4/f32_nq",
                                         "v41/f32_nq",
                                         "v4/f32",
                                         "v41/f32",
                                         "v4/bf16",
                                         "v41/bf16",
                                         "v4/bf16_act",
                                         "v41/bf16_act",
                                         "v41/replay"),
                         [](const testing::TestParamInfo<const char*>& param) {
                           std::string name = param.param;
                           std::ranges::replace(name, '/', '_');
                           return name;
                         });

}  // namespace
}  // namespace galley::model
