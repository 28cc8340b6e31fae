#include "plan/engine_gates.h"

#include <gtest/gtest.h>

namespace galley::plan {
namespace {

void expect_no_violation(const SweepResult& result) {
  std::string violations;
  for (const std::string& one : result.violations) {
    violations += one + "\n";
  }
  EXPECT_EQ(result.failed, 0) << "first with seed "
                              << (result.first_failed ? result.first_failed->value() : 0) << ":\n"
                              << violations;
}

TEST(EngineGates, RandomMachinesAnswerAsTheOracle) {
  const SweepResult result = sweep_engines(1, 100, 2000);
  expect_no_violation(result);
  EXPECT_GE(result.rows, 200'000);
  EXPECT_GT(result.preemptions, 100);
  EXPECT_GT(result.hit_tokens, 10'000);
  EXPECT_GT(result.stored_hit_tokens, 1'000);
  EXPECT_GT(result.forks, 100);
  // Budgets cut, and not everything.
  EXPECT_GT(result.drafts_verified, result.drafts / 4);
  EXPECT_LT(result.drafts_verified, result.drafts * 9 / 10);
}

TEST(EngineGates, TinyPoolsNeverDeadlock) {
  const SweepResult result = sweep_engines(1'000'000, 1000, 100);
  expect_no_violation(result);
  EXPECT_GT(result.preemptions, 100);
}

TEST(EngineGates, T10_1EveryAnswerIsInItsGrammar) {
  const SweepResult result = sweep_grammars(2'000'000, 100, 2000);
  expect_no_violation(result);
  EXPECT_GE(result.requests, 5000);
  EXPECT_GT(result.preemptions, 100);
  EXPECT_GT(result.forks, 50);
  EXPECT_GT(result.masks, result.rows / 2);
  // Some drafts are right, and many are not allowed.
  EXPECT_GT(result.drafts_forbidden, 1000);
  EXPECT_GT(result.drafts_verified, 1000);
}

TEST(EngineGates, EveryMutationIsCaught) {
  for (const MutationResult& one : try_engine_mutations()) {
    EXPECT_TRUE(one.caught) << one.name << " was not seen in " << one.rows << " rows";
    // By the check of whose masks they are, before a wrong token is drawn.
    if (one.name == "another row's masks") {
      EXPECT_NE(one.seen_as.find("not those of the row"), std::string::npos) << one.seen_as;
    }
  }
}

TEST(EngineGates, EqualTenantsGetEqualShares) {
  const FairnessResult result = measure_fairness();
  EXPECT_GE(result.jain, 0.95);
  EXPECT_GE(result.steps, 5000);
  EXPECT_LE(result.batch_wait, engine::kAgeStep * engine::kPriorities + result.interactive_wait);
}

TEST(EngineGates, RunsInAFullPoolWithoutPreempting) {
  const PressureResult result = measure_pressure();
  EXPECT_GE(result.occupancy, 0.95);
  EXPECT_LE(result.preemptions, 0.02);
  EXPECT_GE(result.stalled_without, 5 * result.stalled);
}

TEST(EngineGates, TheDeviceIsNeverIdle) {
  EXPECT_LE(measure_idle(std::chrono::milliseconds(1)), 0.01);
}

}  // namespace
}  // namespace galley::plan
