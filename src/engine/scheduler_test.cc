// What the simulation (src/plan) does not ask: what is refused, and single orders of events.
#include "engine/scheduler.h"

#include <gtest/gtest.h>
#include <memory>

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

}  // namespace
}  // namespace galley::engine
