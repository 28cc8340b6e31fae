// Goal: a long answer is delivered a bounded part at a time, and a cancel ends it between two.
// Method: a virtual loop whose tasks the test runs one moment at a time.
#include "gateway/sources/delivery.h"

#include <gtest/gtest.h>

#include "gateway/sources/recording_sink_for_test.h"

namespace galley::gateway {
namespace {

// Runs what is due now, with what that posts, up to `tasks`.
void run(VirtualLoop& loop, std::uint64_t tasks) {
  (void)loop.run_until_quiet(tasks);
}

TEST(Delivery, DeliversNothingInsideTheCallAndABoundedPartATask) {
  VirtualLoop loop;
  RecordingSink sink;
  const auto active =
      deliver(loop, {.started = {}, .ids = std::vector<TokenId>(2 * kStepsPerTask + 1)}, sink);
  EXPECT_EQ(sink.calls, 0);
  run(loop, 1);
  EXPECT_EQ(sink.ids.size(), kStepsPerTask);
  run(loop, 1);
  EXPECT_EQ(sink.ids.size(), 2 * kStepsPerTask);
  EXPECT_FALSE(sink.finish);
  run(loop, 1);
  EXPECT_EQ(sink.ids.size(), 2 * kStepsPerTask + 1);
  EXPECT_EQ(sink.finish, recipe::SourceFinish::kStop);
  EXPECT_TRUE(loop.run_until_quiet(0));
}

TEST(Delivery, TwoAnswersTakeTurns) {
  VirtualLoop loop;
  RecordingSink first;
  RecordingSink second;
  const auto one =
      deliver(loop, {.started = {}, .ids = std::vector<TokenId>(9 * kStepsPerTask)}, first);
  const auto two = deliver(loop, {.started = {}, .ids = {1}}, second);
  run(loop, 2);
  EXPECT_FALSE(first.finish);
  EXPECT_TRUE(second.finish);
}

TEST(Delivery, ACancelIsFinal) {
  VirtualLoop loop;
  RecordingSink sink;
  auto active =
      deliver(loop, {.started = {}, .ids = std::vector<TokenId>(2 * kStepsPerTask)}, sink);
  run(loop, 1);
  const int calls = sink.calls;
  active.reset();
  EXPECT_TRUE(loop.run_until_quiet());
  EXPECT_EQ(sink.calls, calls);
}

TEST(Delivery, LimitsHoldAtTheirEdges) {
  const recipe::Generation generation{.max_tokens = 2, .stop_ids = {9}};
  const auto cut = [&](std::vector<TokenId> ids) {
    return limited(
        {.started = {}, .ids = std::move(ids), .end = recipe::SourceFinish::kContentFilter},
        generation);
  };
  const auto reason = [](const KnownAnswer& answer) {
    return std::get<recipe::SourceFinish>(answer.end);
  };
  EXPECT_EQ(reason(cut({1, 2})), recipe::SourceFinish::kContentFilter);
  EXPECT_EQ(reason(cut({1, 2, 3})), recipe::SourceFinish::kLength);
  EXPECT_EQ(cut({1, 2, 3}).ids, (std::vector<TokenId>{1, 2}));
  EXPECT_EQ(reason(cut({1, 2, 9, 3})), recipe::SourceFinish::kStop);
  EXPECT_EQ(cut({1, 9}).ids, std::vector<TokenId>{1});
  EXPECT_EQ(reason(cut({1, 2, 3, 9})), recipe::SourceFinish::kLength);
  const KnownAnswer broken =
      limited({.started = {}, .ids = {1, 2, 3, 9}, .end = Error{.what = "x"}}, generation);
  EXPECT_EQ(broken.ids.size(), 4U);
}

}  // namespace
}  // namespace galley::gateway
