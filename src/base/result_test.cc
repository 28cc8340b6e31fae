// Goal: errors travel outward unchanged, with the step's name only where a caller adds it.
#include "base/result.h"

#include <gtest/gtest.h>

namespace galley {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) {
    return fail(Code::kInvalidArgument, "odd", "value");
  }
  return value / 2;
}

Result<int> quarter(int value) {
  GALLEY_TRY(const int first, half(value));
  GALLEY_TRY(const int second, half(first));
  return second;
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(*quarter(8), 2);
  const Result<int> odd = quarter(6);
  ASSERT_FALSE(odd);
  EXPECT_EQ(to_string(odd.error()), "invalid argument: odd (at value)");
}

TEST(Result, StepsAreNamedFromOutsideIn) {
  EXPECT_EQ(
      in_step("load", in_step("parse", Error{Code::kCorruption, "bad", {}}).error()).error().what,
      "load: parse: bad");
}

}  // namespace
}  // namespace galley
