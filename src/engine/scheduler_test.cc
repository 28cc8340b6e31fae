// What the simulation (src/plan) does not ask: what is refused, and single orders of events.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

namespace galley::engine {
namespace {

std::shared_ptr<const EngineRequest> request(std::int64_t prompt, std::int64_t tokens) {
  auto out = std::make_shared<EngineRequest>();
  out->generation.prompt.resize(static_cast<std::size_t>(prompt), TokenId{7});
  out->generation.max_tokens = tokens;
  return out;
}

Result<RequestId> submit(Scheduler& scheduler, std::int64_t prompt, std::int64_t tokens) {
  return scheduler.submit(request(prompt, tokens), {}, Priority::kInteractive, {});
}

struct NoState final : cache::State {
  [[nodiscard]] std::size_t bytes() const override { return 0; }
};

// Every row that draws gets one token.
StepResult result_of(const StepPlan& plan) {
  StepResult out{.id = plan.id};
  for (const PlannedRow& row : plan.rows) {
    out.rows.push_back({.slot = row.slot, .generation = row.generation});
    if (row.draws) {
      out.rows.back().tokens = {1};
    }
  }
  return out;
}

// What a request of one token is told first; it is over then.
recipe::Started started_of(Scheduler& scheduler,
                           std::vector<TokenId> prompt,
                           const cache::BlockKey& root = {}) {
  auto request = std::make_shared<EngineRequest>();
  request->generation.prompt = std::move(prompt);
  request->generation.max_tokens = 1;
  EXPECT_TRUE(scheduler.submit(std::move(request), root, Priority::kInteractive, {}));
  while (const auto plan = scheduler.plan({})) {
    StepResult result = result_of(*plan);
    for (SettledRow& row : result.rows) {
      if (!row.tokens.empty()) {
        row.finish = recipe::SourceFinish::kLength;
      }
    }
    EXPECT_TRUE(scheduler.settle(result));
    scheduler.reclaim();
  }
  const std::vector<Output> outputs = scheduler.take_outputs();
  EXPECT_TRUE(!outputs.empty() && outputs.front().started);
  return outputs.front().started.value_or(recipe::Started());
}

TEST(Scheduler, RefusesWhatCouldNeverRunAndWhatIsTooMuch) {
  Scheduler scheduler({.slots = 1, .blocks = 2, .context_tokens = 1000, .waiting_max = 2});
  EXPECT_EQ(submit(scheduler, 0, 1).error().code, Code::kInvalidArgument);
  EXPECT_EQ(submit(scheduler, 1, 0).error().code, Code::kInvalidArgument);
  EXPECT_EQ(submit(scheduler, 1, 1000).error().where, "max_tokens");
  EXPECT_EQ(submit(scheduler, 200, 57).error().where, "max_tokens");  // three blocks
  EXPECT_TRUE(submit(scheduler, 200, 56));
  EXPECT_TRUE(submit(scheduler, 1, 1));
  EXPECT_EQ(submit(scheduler, 1, 1).error().code, Code::kOverloaded);
  EXPECT_TRUE(scheduler.plan({}));  // the first one runs
  EXPECT_TRUE(submit(scheduler, 1, 1));
}

TEST(Scheduler, ResultsOutOfTurnAreAnError) {
  Scheduler scheduler({.slots = 1, .blocks = 2, .context_tokens = 100});
  ASSERT_TRUE(submit(scheduler, 5, 5));
  const auto plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  StepResult wrong = result_of(*plan);
  wrong.id = StepId(99);
  EXPECT_EQ(scheduler.settle(wrong).error().code, Code::kInternal);
  EXPECT_TRUE(scheduler.settle(result_of(*plan)));
  EXPECT_EQ(scheduler.settle(result_of(*plan)).error().code, Code::kInternal);
}

TEST(Scheduler, ResultsThatCannotBeAreAnError) {
  const auto settled_with = [](auto change) {
    Scheduler scheduler({.slots = 1, .blocks = 2, .context_tokens = 100, .drafts = 2});
    EXPECT_TRUE(submit(scheduler, 5, 50));
    StepResult result = result_of(*scheduler.plan({}));
    change(result.rows[0]);
    return scheduler.settle(result);
  };
  EXPECT_TRUE(settled_with([](SettledRow&) {}));
  EXPECT_TRUE(settled_with([](SettledRow& row) { row.confidences = {0.5F, 0.5F}; }));
  EXPECT_TRUE(settled_with([](SettledRow& row) { row.drafts_verified = 2; }));
  const auto code = [&](auto change) { return settled_with(change).error().code; };
  EXPECT_EQ(code([](SettledRow& row) { row.confidences = {0.5F}; }), Code::kInternal);
  EXPECT_EQ(code([](SettledRow& row) { row.confidences.resize(3); }), Code::kInternal);
  EXPECT_EQ(code([](SettledRow& row) { row.drafts_verified = 3; }), Code::kInternal);
  EXPECT_EQ(code([](SettledRow& row) { row.drafts_accepted = -1; }), Code::kInternal);
  const auto state_at = [&](std::int64_t end) {
    return code([&](SettledRow& row) {
      row.state = std::make_shared<NoState>();
      row.state_end = end;
    });
  };
  EXPECT_EQ(state_at(4), Code::kInternal);
  EXPECT_EQ(state_at(128), Code::kInternal);
  EXPECT_EQ(code([](SettledRow& row) {
              row.drafts_verified = 1;
              row.drafts_accepted = 2;
            }),
            Code::kInternal);
}

// A whole hit that lies where windows have to be rebuilt is none, and says how long it was.
TEST(Scheduler, AHitThatWouldBeComputedAgainIsTooShort) {
  Scheduler scheduler({.slots = 1,
                       .blocks = 8,
                       .context_tokens = 900,
                       .hit = {.keep_tokens = 1, .replay_tokens = 300}});
  const std::vector<TokenId> prompt(300, TokenId{7});
  EXPECT_EQ(started_of(scheduler, prompt).cache_miss->reason, recipe::MissReason::kNotStored);
  const recipe::Started again = started_of(scheduler, prompt);
  EXPECT_EQ(again.cached_tokens, 0);
  ASSERT_TRUE(again.cache_miss);
  EXPECT_EQ(again.cache_miss->reason, recipe::MissReason::kTooShort);
  EXPECT_EQ(again.cache_miss->token, 256);
  EXPECT_EQ(scheduler.stats().misses_too_short, 1);
}

// Or whoever may ask could read what others wrote, a token a guess.
TEST(Scheduler, WhatOthersStoreChangesNoClientsReason) {
  Scheduler scheduler({.slots = 1, .blocks = 16, .context_tokens = 900});
  const auto root = [](const char* tenant) {
    return cache::root_key({.layout = "", .weights = "", .salt = tenant});
  };
  const auto prompt = [](TokenId last_of_block) {
    std::vector<TokenId> out(130, TokenId{1});
    out[127] = last_of_block;
    return out;
  };
  started_of(scheduler, prompt(5), root("asking"));
  started_of(scheduler, prompt(9), root("victim"));
  for (const TokenId guess : {TokenId{8}, TokenId{9}}) {
    const auto miss = started_of(scheduler, prompt(guess), root("asking")).cache_miss;
    ASSERT_TRUE(miss);
    EXPECT_EQ(miss->reason, recipe::MissReason::kDifferent);
    EXPECT_EQ(miss->token, 127);
  }
  EXPECT_EQ(scheduler.stats().misses_different, 1);
  EXPECT_EQ(scheduler.stats().misses_other_scope, 1);
}

// Who follows is not held up by one that is served later.
TEST(Scheduler, TheBestOfThoseThatFollowLeadsNext) {
  Scheduler scheduler({.slots = 1, .blocks = 8, .context_tokens = 900});
  const auto add = [&](Priority priority, std::int64_t tokens) {
    return scheduler.submit(request(200, tokens), {}, priority, {}).value();
  };
  const RequestId leader = add(Priority::kInteractive, 1);
  add(Priority::kBatch, 2);
  add(Priority::kAgent, 3);
  add(Priority::kInteractive, 4);
  add(Priority::kInteractive, 5);
  EXPECT_EQ(scheduler.waiting(), 5U);
  scheduler.cancel(leader);
  EXPECT_EQ(scheduler.waiting(), 4U);
  const auto plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->starts.front().request->generation.max_tokens, 4);
  EXPECT_EQ(scheduler.waiting(), 3U);
}

// Who shares the prompt of one that fails computes it on its own.
TEST(Scheduler, AForkWhoseLeaderFailedBeginsAnew) {
  Scheduler scheduler({.slots = 2, .blocks = 8, .context_tokens = 900});
  const auto leader = submit(scheduler, 200, 4);
  const auto follower = submit(scheduler, 200, 4);
  ASSERT_TRUE(leader && follower);
  auto plan = scheduler.plan({});
  ASSERT_EQ(plan->rows.size(), 2U);
  ASSERT_TRUE(plan->rows[1].fork_of);
  StepResult result = result_of(*plan);
  for (SettledRow& row : result.rows) {
    row.tokens.clear();
  }
  result.rows[0].error = Error{.code = Code::kInternal, .what = "not finite"};
  result.rows[1].lost = true;
  ASSERT_TRUE(scheduler.settle(result));
  scheduler.reclaim();
  auto outputs = scheduler.take_outputs();
  ASSERT_EQ(outputs.size(), 2U);  // the leader's
  EXPECT_EQ(outputs[1].request, *leader);
  EXPECT_TRUE(outputs[1].error);
  EXPECT_EQ(scheduler.waiting(), 1U);

  plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->rows.size(), 1U);
  EXPECT_FALSE(plan->rows[0].fork_of);
  EXPECT_EQ(plan->rows[0].feed, 200);
  ASSERT_TRUE(scheduler.settle(result_of(*plan)));
  outputs = scheduler.take_outputs();
  ASSERT_EQ(outputs.size(), 2U);
  EXPECT_EQ(outputs[0].request, *follower);
  ASSERT_TRUE(outputs[0].started);
  EXPECT_EQ(outputs[0].started->cached_tokens, 0);
  EXPECT_EQ(outputs[1].tokens, std::vector<TokenId>{1});
  // Nothing but a fork can be lost.
  plan = scheduler.plan({});
  StepResult wrong = result_of(*plan);
  wrong.rows[0].lost = true;
  EXPECT_EQ(scheduler.settle(wrong).error().code, Code::kInternal);
}

// Two requests fill the pool and both need a block more; one goes away while a step is waited for.
// The other must not wait for ever.
TEST(Scheduler, WhoLacksABlockGoesOnWhenAnotherLeaves) {
  Scheduler scheduler({.slots = 2, .blocks = 2, .context_tokens = 256, .growth_tokens = 0});
  const auto a = submit(scheduler, 127, 100);
  const auto b = submit(scheduler, 127, 100);
  ASSERT_TRUE(a && b);
  std::optional<StepPlan> plan = scheduler.plan({});
  while (plan) {
    ASSERT_TRUE(scheduler.settle(result_of(*plan)));
    scheduler.reclaim();
    if (scheduler.take_outputs().size() > 0 && scheduler.cache().available() == 0) {
      break;
    }
    plan = scheduler.plan({});
  }
  scheduler.cancel(*a);
  plan = scheduler.plan({});
  if (!plan) {
    EXPECT_TRUE(scheduler.reclaim());  // so the loop's turn is not the last
    plan = scheduler.plan({});
  }
  EXPECT_TRUE(plan);
}

TEST(Scheduler, TokensBeforeAnErrorAreDelivered) {
  Scheduler scheduler({.slots = 1, .blocks = 2, .context_tokens = 100, .drafts = 2});
  ASSERT_TRUE(submit(scheduler, 5, 50));
  auto plan = scheduler.plan({});
  ASSERT_TRUE(scheduler.settle(result_of(*plan)));
  (void)scheduler.take_outputs();
  plan = scheduler.plan({});
  StepResult result = result_of(*plan);
  result.rows[0].tokens = {4, 5};
  result.rows[0].error = Error{.code = Code::kInternal, .what = "not finite"};
  ASSERT_TRUE(scheduler.settle(result));
  const auto outputs = scheduler.take_outputs();
  ASSERT_EQ(outputs.size(), 1U);
  EXPECT_EQ(outputs[0].tokens, (std::vector<TokenId>{4, 5}));
  EXPECT_TRUE(outputs[0].error);
  EXPECT_EQ(scheduler.running(), 0U);
}

// What a store does is up to the test.
class AnyTraffic final : public BlockTraffic {
 public:
  void fetch(FetchOrder order) override { ordered = std::move(order); }
  [[nodiscard]] FetchState state(RequestId) override { return now; }
  void stop(RequestId) override { ++stopped; }
  void write(const WriteOrder& order) override { written.push_back(order); }

  std::optional<FetchOrder> ordered;
  FetchState now;
  int stopped = 0;
  std::vector<WriteOrder> written;
};

constexpr SchedulerOptions kWithStore{.slots = 2,
                                      .blocks = 12,
                                      .context_tokens = 1000,
                                      .hit = {.keep_tokens = 1, .replay_tokens = 16},
                                      .prefill_tokens_beside = 512};

// Of 500 tokens three whole blocks may be found.
TEST(Scheduler, WaitsForAStoreWhileOthersRun) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));
  ASSERT_TRUE(traffic.ordered);
  EXPECT_EQ(traffic.ordered->keys.size(), 3U);
  EXPECT_EQ(scheduler.fetching(), 1U);
  EXPECT_EQ(scheduler.wake_at(), TimeNs() + FetchLimits().wait_max);
  traffic.now.begun = true;
  EXPECT_FALSE(scheduler.plan({}));
  EXPECT_EQ(scheduler.wake_at(), TimeNs() + FetchLimits().quiet_max);

  ASSERT_TRUE(submit(scheduler, 5, 5));  // shorter than a block: no store is asked
  const auto other = scheduler.plan({});
  ASSERT_TRUE(other);
  EXPECT_EQ(other->rows.size(), 1U);
  EXPECT_EQ(other->starts.front().tokens.size(), 5U);
  ASSERT_TRUE(scheduler.settle(result_of(*other)));

  // Two came, the third did not verify.
  traffic.now = {.promised = 3, .fetched = 2, .over = true, .end = FetchEnd::kDamaged};
  const auto plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->starts.size(), 1U);
  EXPECT_EQ(plan->starts.front().begin, 2 * kBlockTokens - 16);
  EXPECT_EQ(plan->starts.front().write_floor, 2 * kBlockTokens);
  EXPECT_EQ(traffic.stopped, 1);
  EXPECT_EQ(scheduler.fetching(), 0U);
  EXPECT_EQ(scheduler.stats().misses_damaged, 1);
  EXPECT_EQ(scheduler.stats().stored_hit_tokens, 2 * kBlockTokens - 16);

  // Written is what was computed, not what was fetched; exact, as windows are.
  ASSERT_TRUE(scheduler.settle(result_of(*plan)));
  ASSERT_EQ(traffic.written.size(), 1U);
  EXPECT_EQ(traffic.written.front().key, traffic.ordered->keys[2]);
  EXPECT_TRUE(traffic.written.front().exact);
}

// It is used, but nobody goes on from it.
TEST(Scheduler, WhatIsNotToBeKeptIsNotWritten) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  auto once = std::make_shared<EngineRequest>(*request(500, 5));
  once->generation.keeps_blocks = false;
  ASSERT_TRUE(scheduler.submit(std::move(once), {}, Priority::kInteractive, {}));
  EXPECT_FALSE(scheduler.plan({}));
  EXPECT_TRUE(traffic.ordered);
  traffic.now = {.over = true, .end = FetchEnd::kUnknown};
  const auto plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  ASSERT_TRUE(scheduler.settle(result_of(*plan)));
  EXPECT_EQ(traffic.written.size(), 0U);
}

TEST(Scheduler, AStoreThatSaysNothingIsGivenUp) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  traffic.now.begun = true;
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));  // orders
  EXPECT_FALSE(scheduler.plan({}));
  EXPECT_FALSE(scheduler.plan(TimeNs() + FetchLimits().quiet_max - Duration(1)));
  const auto plan = scheduler.plan(TimeNs() + FetchLimits().quiet_max);
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->starts.front().begin, 0);
  EXPECT_EQ(scheduler.stats().misses_late, 1);
}

// More come back at once than there are readers: the others are not late before their turn.
TEST(Scheduler, AFetchIsNotQuietBeforeItsTurn) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));
  const TimeNs turn = TimeNs() + FetchLimits().quiet_max * 3;
  EXPECT_FALSE(scheduler.plan(turn));
  traffic.now.begun = true;
  EXPECT_FALSE(scheduler.plan(turn));
  EXPECT_EQ(scheduler.wake_at(), turn + FetchLimits().quiet_max);
  EXPECT_FALSE(scheduler.plan(turn + FetchLimits().quiet_max - Duration(1)));
  EXPECT_TRUE(scheduler.plan(turn + FetchLimits().quiet_max));
  EXPECT_EQ(scheduler.stats().misses_late, 1);
}

TEST(Scheduler, AFetchWhoseTurnDoesNotComeIsGivenUp) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));
  EXPECT_FALSE(scheduler.plan(TimeNs() + FetchLimits().wait_max - Duration(1)));
  EXPECT_TRUE(scheduler.plan(TimeNs() + FetchLimits().wait_max));
}

// Windows of 300 tokens are computed again: of a store, one or two blocks help nobody.
TEST(Scheduler, WhatAStoreHasAndIsComputedAgainIsTooShort) {
  SchedulerOptions options = kWithStore;
  options.hit.replay_tokens = 300;
  for (const FetchState& state :
       {FetchState{.promised = 2, .over = true, .end = FetchEnd::kUnknown},  // not read
        FetchState{.promised = 3, .fetched = 2}}) {                          // late
    Scheduler scheduler(options);
    AnyTraffic traffic;
    scheduler.attach(traffic);
    ASSERT_TRUE(submit(scheduler, 500, 5));
    EXPECT_FALSE(scheduler.plan({}));
    EXPECT_EQ(traffic.ordered->least, 3U);
    traffic.now = state;
    const auto plan = scheduler.plan(TimeNs() + FetchLimits().wait_max);
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->starts.front().begin, 0);
    const auto outputs = scheduler.take_outputs();
    ASSERT_TRUE(!outputs.empty() && outputs.front().started && outputs.front().started->cache_miss);
    EXPECT_EQ(outputs.front().started->cache_miss->reason, recipe::MissReason::kTooShort);
    EXPECT_EQ(outputs.front().started->cache_miss->token, 2 * kBlockTokens);
  }
  Scheduler scheduler(options);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  traffic.now = {.promised = 3, .fetched = 1, .over = true, .end = FetchEnd::kDamaged};
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));
  EXPECT_TRUE(scheduler.plan({}));
  EXPECT_EQ(scheduler.stats().misses_damaged, 1);
}

TEST(Scheduler, WhoLeavesOrIsPreemptedStopsItsFetch) {
  Scheduler scheduler(kWithStore);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  const auto first = submit(scheduler, 500, 5);
  EXPECT_FALSE(scheduler.plan({}));
  scheduler.preempt(*first);
  EXPECT_EQ(traffic.stopped, 1);
  EXPECT_FALSE(scheduler.plan({}));  // asks again
  scheduler.cancel(*first);
  EXPECT_EQ(traffic.stopped, 2);
  EXPECT_EQ(scheduler.fetching(), 0U);
  scheduler.reclaim();
  EXPECT_EQ(scheduler.cache().available(), 12U);
}

TEST(Scheduler, BehindABoundedRebuildBlocksAreApproximate) {
  SchedulerOptions options = kWithStore;
  options.exact_windows = false;
  Scheduler scheduler(options);
  AnyTraffic traffic;
  scheduler.attach(traffic);
  traffic.now = {.promised = 2, .fetched = 2, .over = true, .end = FetchEnd::kUnknown};
  ASSERT_TRUE(submit(scheduler, 500, 5));
  EXPECT_FALSE(scheduler.plan({}));
  const auto plan = scheduler.plan({});
  ASSERT_TRUE(plan);
  ASSERT_TRUE(scheduler.settle(result_of(*plan)));
  ASSERT_EQ(traffic.written.size(), 1U);
  EXPECT_FALSE(traffic.written.front().exact);
}

}  // namespace
}  // namespace galley::engine
