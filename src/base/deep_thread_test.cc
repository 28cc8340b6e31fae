// Goal: a task gets the stack it asks for, and a stack that cannot be had is an error with the
// system's reason. Method: recursion that no usual stack holds.
#include "base/deep_thread.h"

#include <array>
#include <gtest/gtest.h>

namespace galley {
namespace {

// About a KiB of stack a level.
int depth_of(int levels) {  // NOLINT(misc-no-recursion): what is tested
  std::array<volatile char, 1024> used{};
  used[static_cast<std::size_t>(levels) % used.size()] = 1;
  return levels == 0 ? used[0] : depth_of(levels - 1) + used[1023] + 1;
}

TEST(DeepThread, HasTheStackItAsksFor) {
  constexpr int kLevels = 40'000;  // 40 MiB and more; a usual stack has 8
  int reached = 0;
  const auto ran = run_deep(std::size_t{256} << 20U, [&] { reached = depth_of(kLevels); });
  ASSERT_TRUE(ran) << to_string(ran.error());
  EXPECT_GE(reached, kLevels);
}

TEST(DeepThread, AStackThatCannotBeHadIsAnErrorWithItsReason) {
  bool ran = false;
  const auto none = run_deep(1, [&] { ran = true; });
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::kUnavailable);
  EXPECT_EQ(none.error().what, "no thread with a stack of 1 bytes: Invalid argument");
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace galley
