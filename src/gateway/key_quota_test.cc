// Goal: the limits of a key hold, its tenants' neighbours feel nothing, and a refusal says
// truthfully when to come again. Method: virtual time.
#include "gateway/key_quota.h"

#include <gtest/gtest.h>
#include <vector>

#include "base/virtual_loop.h"

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;

ApiKey key(std::string name, KeyLimits limits) {
  return {.name = std::move(name), .limits = limits};
}

class KeyQuotaTest : public testing::Test {
 protected:
  void pass(Duration time) { loop_.run_until(loop_.now() + time); }

  VirtualLoop loop_;
  KeyQuota quota_{loop_};
};

TEST_F(KeyQuotaTest, PlacesComeBackWhenAnswersEnd) {
  const ApiKey alice = key("alice", {.concurrency = 2});
  auto first = quota_.enter(alice);
  auto second = quota_.enter(alice);
  ASSERT_TRUE(first.has_value());
  ASSERT_TRUE(second.has_value());
  const auto third = quota_.enter(alice);
  ASSERT_FALSE(third.has_value());
  EXPECT_EQ(third.error().error.code, Code::kOverloaded);
  EXPECT_NE(third.error().error.what.find("2 requests at once"), std::string::npos);
  EXPECT_TRUE(quota_.enter(key("bob", {.concurrency = 2})).has_value());
  second->reset();
  EXPECT_TRUE(quota_.enter(alice).has_value());
}

TEST_F(KeyQuotaTest, EveryChoiceTakesAPlace) {
  const ApiKey alice = key("alice", {.concurrency = 4});
  auto first = quota_.enter(alice);
  auto second = quota_.enter(alice);
  ASSERT_TRUE(first.has_value() && second.has_value());
  EXPECT_FALSE((*first)->widen(3));
  const auto full = (*second)->widen(2);
  ASSERT_TRUE(full);
  EXPECT_EQ(full->error.code, Code::kOverloaded);
  EXPECT_EQ(full->retry_after, 1s);
  EXPECT_FALSE(quota_.enter(alice).has_value());
  first->reset();  // all three
  const auto never = (*second)->widen(5);
  ASSERT_TRUE(never);
  EXPECT_EQ(never->error.code, Code::kInvalidArgument);
  EXPECT_EQ(never->error.where, "n");
  EXPECT_EQ(never->retry_after, 0s);
  EXPECT_FALSE((*second)->widen(4));
  EXPECT_FALSE(quota_.enter(alice).has_value());
  second->reset();
  auto unbounded = quota_.enter(key("bob", {}));
  ASSERT_TRUE(unbounded.has_value());
  EXPECT_FALSE((*unbounded)->widen(16));
}

TEST_F(KeyQuotaTest, RequestsComeBackWithTime) {
  const ApiKey alice = key("alice", {.requests_per_minute = 30});
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(quota_.enter(alice).has_value()) << i;
  }
  const auto refused = quota_.enter(alice);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().retry_after, 2s);
  pass(refused.error().retry_after - 1ms);
  EXPECT_FALSE(quota_.enter(alice).has_value());  // and a refusal costs nothing
  pass(1ms);
  EXPECT_TRUE(quota_.enter(alice).has_value());
  EXPECT_FALSE(quota_.enter(alice).has_value());
  pass(10min);  // no more than a minute's worth is saved
  for (int i = 0; i < 30; ++i) {
    EXPECT_TRUE(quota_.enter(alice).has_value()) << i;
  }
  EXPECT_FALSE(quota_.enter(alice).has_value());
}

TEST_F(KeyQuotaTest, TokensMayBeOverdrawnAndAreThenPaidBack) {
  const ApiKey alice = key("alice", {.tokens_per_minute = 600});
  auto place = quota_.enter(alice);
  ASSERT_TRUE(place.has_value());
  (*place)->charge(800);  // what an answer costs is known when it is over
  const auto refused = quota_.enter(alice);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().retry_after, 20'100ms);  // 201 tokens at 10 a second
  pass(refused.error().retry_after);
  EXPECT_TRUE(quota_.enter(alice).has_value());
}

TEST_F(KeyQuotaTest, OfSeveralLimitsTheLongestWaitIsTold) {
  const ApiKey alice =
      key("alice", {.concurrency = 1, .requests_per_minute = 1, .tokens_per_minute = 60});
  auto place = quota_.enter(alice);
  ASSERT_TRUE(place.has_value());
  EXPECT_EQ(quota_.refuses(alice)->retry_after, 60s);
  (*place)->charge(160);
  const auto refused = quota_.refuses(alice);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->retry_after, 101s);
  EXPECT_NE(refused->error.what.find("60 weighted tokens"), std::string::npos);
  place->reset();
  pass(101s);
  EXPECT_FALSE(quota_.refuses(alice).has_value());
}

TEST_F(KeyQuotaTest, NoLimitsNoRefusals) {
  const ApiKey alice = key("alice", {});
  std::vector<std::unique_ptr<KeyQuota::Place>> places;
  for (int i = 0; i < 1000; ++i) {
    auto place = quota_.enter(alice);
    ASSERT_TRUE(place.has_value());
    (*place)->charge(1'000'000);
    places.push_back(std::move(*place));
  }
}

}  // namespace
}  // namespace galley::gateway
