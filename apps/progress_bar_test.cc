// Goal: what a bar says of a batch is right at its ends. Method: texts for given figures; nothing
// is shown.
#include "apps/progress_bar.h"

#include <chrono>
#include <gtest/gtest.h>

namespace galley::apps {
namespace {

using namespace std::chrono_literals;

TEST(BatchProgress, SaysNoTimeBeforeALineIsDone) {
  EXPECT_EQ(batch_progress_text({.total = 40}), "0 of 40 lines");
  EXPECT_EQ(batch_progress_text({.total = 40, .tokens = 30, .elapsed = 2s}),
            "0 of 40 lines, 15.0 tokens/s");
}

TEST(BatchProgress, EstimatesTheTimeFromTheLinesOfThisRun) {
  EXPECT_EQ(
      batch_progress_text({.done = 12, .total = 40, .failed = 1, .tokens = 100, .elapsed = 10s}),
      "12 of 40 lines, 1 failed, 10.0 tokens/s, 0:23 left");
  EXPECT_EQ(batch_progress_text(
                {.done = 12, .done_before = 11, .total = 40, .tokens = 100, .elapsed = 10s}),
            "12 of 40 lines, 10.0 tokens/s, 4:40 left");
  EXPECT_EQ(batch_progress_text({.done = 1, .total = 4001, .elapsed = 9s}),
            "1 of 4001 lines, 0.0 tokens/s, 10:00:00 left");
}

TEST(BatchProgress, NothingIsLeftAtTheEnd) {
  EXPECT_EQ(batch_progress_text({.done = 4, .total = 4, .tokens = 5, .elapsed = 1s}),
            "4 of 4 lines, 5.0 tokens/s");
}

}  // namespace
}  // namespace galley::apps
