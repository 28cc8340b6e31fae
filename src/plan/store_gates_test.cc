#include "plan/store_gates.h"

#include <gtest/gtest.h>

namespace galley::plan {
namespace {

TEST(StoreGates, KeepsWhatItAcknowledgedAndServesNothingElse) {
  const StoreSweep result = sweep_stores(1, 60);
  std::string violations;
  for (const std::string& one : result.sum.violations) {
    violations += one + "\n";
  }
  EXPECT_EQ(result.failed, 0) << "first with seed "
                              << (result.first_failed ? result.first_failed->value() : 0) << ":\n"
                              << violations;
  EXPECT_GT(result.sum.injected(), 1000);
  EXPECT_GT(result.sum.recoveries, 1000);
  EXPECT_GT(result.sum.reads, 10'000);
}

TEST(StoreGates, EveryMutationIsCaught) {
  for (const StoreMutation& one : try_store_mutations()) {
    EXPECT_TRUE(one.caught) << one.name << " was not seen in " << one.worlds << " worlds";
  }
}

TEST(StoreGates, OneSeedIsOneHistory) {
  const StoreReport a = run_store_world({.seed = Seed(4)});
  const StoreReport b = run_store_world({.seed = Seed(4)});
  EXPECT_EQ(a.puts, b.puts);
  EXPECT_EQ(a.injected(), b.injected());
  EXPECT_EQ(a.reads, b.reads);
  EXPECT_EQ(a.sectors_lost, b.sectors_lost);
}

}  // namespace
}  // namespace galley::plan
