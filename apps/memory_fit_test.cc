// Goal: what is said at start about memory is what arithmetic says, at each bound and one past it.
// Method: a machine and a model of round numbers.
#include "apps/memory_fit.h"

#include <gtest/gtest.h>

namespace galley::apps {
namespace {

constexpr std::size_t kMib = std::size_t{1} << 20U;
constexpr std::size_t kReserve = 256 * kMib;

MemoryDemand demand() {
  return {.weights_bytes = 100 * kMib,
          .block_bytes = kMib,
          .slot_bytes = 2 * kMib,
          .slots = 4,
          .context_tokens = 1280,
          .cache_bytes = 40 * kMib,
          .states_bytes = 0};
}

TEST(MemoryFit, SaysHowManyRequestsRunAtOnce) {
  const auto roomy = memory_fit(demand(), kReserve + 148 * kMib);
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->context_bytes, 10 * kMib);
  EXPECT_EQ(roomy->full_requests, 4U);
  EXPECT_TRUE(roomy->weights_stay);
  EXPECT_EQ(describe(*roomy, demand()), "1280 tokens; 4 of 4 requests of that length at once");
  EXPECT_FALSE(memory_fit(demand(), kReserve + 147 * kMib)->weights_stay);
  EXPECT_EQ(memory_fit(demand(), kReserve + 47 * kMib)->full_requests, 3U);
  MemoryDemand small_cache = demand();
  small_cache.cache_bytes = 0;  // one context always fits
  EXPECT_EQ(memory_fit(small_cache, kReserve + 148 * kMib)->full_requests, 1U);
  MemoryDemand many = demand();
  many.cache_bytes = 1000 * kMib;
  EXPECT_EQ(memory_fit(many, kReserve + 2000 * kMib)->full_requests, 4U) << "no more than slots";
  MemoryDemand states = demand();
  states.states_bytes = kMib;
  EXPECT_EQ(memory_fit(states, kReserve + 48 * kMib)->full_requests, 3U);
  EXPECT_EQ(memory_fit(states, kReserve + 49 * kMib)->full_requests, 4U);
}

TEST(MemoryFit, RefusesWhatCannotFitAndSaysWhatCould) {
  EXPECT_TRUE(memory_fit(demand(), kReserve + 18 * kMib));
  const auto refused = memory_fit(demand(), kReserve + 18 * kMib - 1);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().where, "context_tokens");
  EXPECT_NE(refused.error().what.find("at most 1152 tokens fit"), std::string::npos)
      << refused.error().what;
  EXPECT_NE(memory_fit(demand(), 0).error().what.find("at most 0 tokens fit"), std::string::npos);
}

}  // namespace
}  // namespace galley::apps
