#include "engine/policy.h"

#include <gtest/gtest.h>
#include <vector>

namespace galley::engine {
namespace {

TimeNs at(int seconds) {
  return TimeNs(std::chrono::seconds(seconds));
}

TEST(NextWaiting, TheHighestClassThenTheLeastServedThenTheFirst) {
  std::vector<WaitingView> waiting{
      {.priority = Priority::kBatch, .waiting_since = at(100), .tenant_served = 0, .order = 1},
      {.priority = Priority::kInteractive,
       .waiting_since = at(100),
       .tenant_served = 9,
       .order = 2},
      {.priority = Priority::kInteractive,
       .waiting_since = at(100),
       .tenant_served = 5,
       .order = 4},
      {.priority = Priority::kInteractive,
       .waiting_since = at(100),
       .tenant_served = 5,
       .order = 3}};
  EXPECT_EQ(next_waiting(waiting, at(100)), 3U);
  waiting[2].tenant_full = waiting[3].tenant_full = true;
  EXPECT_EQ(next_waiting(waiting, at(100)), 1U);
  waiting[1].tenant_full = true;
  EXPECT_EQ(next_waiting(waiting, at(100)), 0U);
  waiting[0].tenant_full = true;
  EXPECT_FALSE(next_waiting(waiting, at(100)));
  EXPECT_FALSE(next_waiting({}, at(100)));
}

TEST(NextWaiting, WaitingRaisesTheClassAndInTheEndDecidesAlone) {
  // Behind a stream of new requests of the highest class, of a tenant that is always owed more.
  const WaitingView old{.priority = Priority::kBatch, .tenant_served = 1e6, .order = 1};
  const auto chosen = [&](int now) {
    return *next_waiting(std::vector<WaitingView>{old, {.waiting_since = at(now), .order = 2}},
                         at(now));
  };
  EXPECT_EQ(chosen(0), 1U);
  EXPECT_EQ(chosen(9), 1U);
  EXPECT_EQ(chosen(10), 0U);  // five steps: two to the highest class, three beyond it
}

TEST(ChooseVictim, OneThatFreesABlockOfTheLowestClass) {
  std::vector<VictimView> running{
      {.priority = Priority::kInteractive, .blocks_now = 9, .order = 1},
      {.priority = Priority::kBatch, .blocks_now = 0, .order = 2},
      {.priority = Priority::kAgent, .blocks_now = 2, .answered = 5, .order = 3},
      {.priority = Priority::kAgent, .blocks_now = 2, .answered = 4, .order = 4}};
  EXPECT_EQ(choose_victim(running), 3U);
  running[3].spared = true;
  EXPECT_EQ(choose_victim(running), 2U);
  running[2].blocks_now = running[3].blocks_now = running[0].blocks_now = 0;
  EXPECT_EQ(choose_victim(running), 1U);  // none frees any
  EXPECT_FALSE(choose_victim({}));
}

TEST(ChunkTokens, EndAtBlocksAndKeepTheBudget) {
  EXPECT_EQ(chunk_tokens(0, 100, 128), 100);
  EXPECT_EQ(chunk_tokens(0, 129, 128), 128);
  EXPECT_EQ(chunk_tokens(0, 1000, 400), 384);
  EXPECT_EQ(chunk_tokens(100, 1000, 128), 28);
  EXPECT_EQ(chunk_tokens(100, 1000, 156), 156);
  EXPECT_EQ(chunk_tokens(127, 1000, 128), 1);
  // The last whole block ends with a chunk.
  EXPECT_EQ(chunk_tokens(0, 300, 512, true), 256);
  EXPECT_EQ(chunk_tokens(256, 44, 512, true), 44);
  EXPECT_EQ(chunk_tokens(100, 200, 512, true), 156);
  EXPECT_EQ(chunk_tokens(0, 256, 512, true), 256);
  EXPECT_EQ(chunk_tokens(0, 1000, 400, true), 384);
  for (std::int64_t begin = 0; begin < 300; ++begin) {
    for (const std::int64_t budget : {128, 129, 255, 512}) {
      const std::int64_t chunk = chunk_tokens(begin, 10'000, budget);
      EXPECT_GT(chunk, 0);
      EXPECT_LE(chunk, budget);
      EXPECT_EQ((begin + chunk) % kBlockTokens, 0);
    }
  }
}

TEST(BlocksFor, RoundsUp) {
  EXPECT_EQ(blocks_for(0), 0U);
  EXPECT_EQ(blocks_for(1), 1U);
  EXPECT_EQ(blocks_for(128), 1U);
  EXPECT_EQ(blocks_for(129), 2U);
}

TEST(StartsWithWhatCame, WaitsOnlyForWhatIsWorthIt) {
  using std::chrono::milliseconds;
  const FetchLimits limits{.wait_max = milliseconds(1000), .quiet_max = milliseconds(100)};
  const FetchView view{
      .promised = 10, .fetched = 5, .waited = milliseconds(900), .worked = milliseconds(50)};
  EXPECT_FALSE(starts_with_what_came(view, limits));
  const auto with = [&](auto change) {
    FetchView one = view;
    change(one);
    return starts_with_what_came(one, limits);
  };
  EXPECT_TRUE(with([](FetchView& one) { one.over = true; }));
  EXPECT_FALSE(with([](FetchView& one) { one.waited = milliseconds(999); }));
  EXPECT_TRUE(with([](FetchView& one) { one.waited = milliseconds(1000); }));
  EXPECT_FALSE(with([](FetchView& one) { one.quiet = milliseconds(99); }));
  EXPECT_TRUE(with([](FetchView& one) { one.quiet = milliseconds(100); }));
  // 10 ms a block from the store; 128 tokens take 12.8 ms, then 9.85.
  EXPECT_FALSE(with([](FetchView& one) { one.tokens_per_second = 10'000; }));
  EXPECT_TRUE(with([](FetchView& one) { one.tokens_per_second = 13'000; }));
  // Nothing has come yet: nothing to judge by.
  EXPECT_FALSE(with([](FetchView& one) {
    one.fetched = 0;
    one.tokens_per_second = 1e9;
  }));
}

}  // namespace
}  // namespace galley::engine
