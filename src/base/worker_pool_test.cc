// Goal: every task of a job runs exactly once, whoever takes it, and run() returns when all are
// done. Method: jobs of every size on pools of every size, one behind the other and with slow
// tasks.
#include "base/worker_pool.h"

#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <vector>

#include "base/real_clock.h"

namespace galley {
namespace {

TEST(WorkerPool, EveryTaskOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    WorkerPool pool(threads);
    for (const std::size_t count : {0UL, 1UL, 2UL, 3UL, 4UL, 7UL, 100UL}) {
      std::vector<std::atomic<int>> runs(count);
      pool.run(count, [&](std::size_t task) { runs[task].fetch_add(1); });
      for (std::size_t task = 0; task < count; ++task) {
        EXPECT_EQ(runs[task].load(), 1) << threads << " threads, task " << task << " of " << count;
      }
    }
  }
}

// What run() returns behind is visible without further synchronisation.
TEST(WorkerPool, ManyJobsInARow) {
  WorkerPool pool(3);
  std::vector<int> values(64);
  for (int job = 1; job <= 2000; ++job) {
    pool.run(values.size(), [&](std::size_t task) { ++values[task]; });
    ASSERT_EQ(values.front(), job);
    ASSERT_EQ(values.back(), job);
  }
}

constexpr std::chrono::seconds kLongest(60);  // a pool that does not steal would wait for ever

// One task that waits until all others are done: the others must take its neighbours over.
TEST(WorkerPool, AHeldUpWorkerLosesItsShare) {
  const RealClock clock;
  WorkerPool pool(2);
  for (const std::size_t slow : {0UL, 50UL}) {
    std::atomic<int> done = 0;
    pool.run(100, [&](std::size_t task) {
      if (task == slow) {
        const TimeNs begin = clock.now();
        while (done.load() < 99 && clock.now() - begin < kLongest) {
        }
        EXPECT_EQ(done.load(), 99);
      }
      done.fetch_add(1);
    });
    EXPECT_EQ(done.load(), 100);
  }
}

}  // namespace
}  // namespace galley
