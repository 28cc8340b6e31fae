// Goal: the doctor's own check finds wrong numbers and passes right ones. Method: products of this
// machine; values bent by hand.
#include "apps/doctor_products.h"

#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <set>
#include <string>

namespace galley::apps {
namespace {

TEST(DoctorProducts, EveryInstructionSetAndFormatIsChecked) {
  WorkerPool pool(2);
  const std::vector<ProductCheck> checks = check_products(pool);
  EXPECT_EQ(checks.size(), kernels::supported_isas().size() * kProductFormats.size());
  std::set<std::string> seen;
  for (const ProductCheck& check : checks) {
    const std::string what = std::string(isa_name(check.isa)) + " " + check.format;
    EXPECT_TRUE(seen.insert(what).second) << what;
    EXPECT_LE(check.share, 1) << what;
    EXPECT_GT(check.share, 0) << what;  // float32 sums of a thousand random numbers are not exact
    EXPECT_DOUBLE_EQ(check.share, check.error / check.bound) << what;
  }
}

TEST(DoctorProducts, TheLargestShareCounts) {
  const std::vector<float> values = {1.0F, 2.5F, -4.0F};
  const std::vector<double> exact = {1.0, 2.0, -4.5};
  const std::vector<double> bounds = {1.0, 2.0, 0.25};
  ProductCheck check;
  compare(values, exact, bounds, check);
  EXPECT_EQ(check.error, 0.5);
  EXPECT_EQ(check.bound, 0.25);
  EXPECT_EQ(check.share, 2);
}

TEST(DoctorProducts, WhatIsNoNumberIsNeverGood) {
  for (const float odd :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    ProductCheck check;
    compare(std::vector<float>{1.0F, odd, 1.0F}, std::vector<double>{1, 1, 9},
            std::vector<double>{1, 1, 1}, check);
    EXPECT_TRUE(std::isnan(check.share));
  }
}

}  // namespace
}  // namespace galley::apps
