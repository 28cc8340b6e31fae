// Goal: a task pool runs everything it took, holds its bound, and says so when it takes no more.
// Method: tasks that wait for the test through futures; no sleeps.
#include "base/task_pool.h"

#include <atomic>
#include <future>
#include <gtest/gtest.h>

namespace galley {
namespace {

TEST(TaskPool, RunsEveryTaskOnceBeforeJoinReturns) {
  constexpr int kTasks = 100;
  std::atomic<int> ran = 0;
  TaskPool pool(3, kTasks);
  for (int i = 0; i < kTasks; ++i) {
    EXPECT_TRUE(pool.try_post([&ran] { ++ran; }));
  }
  pool.join();
  EXPECT_EQ(ran, kTasks);
}

TEST(TaskPool, HoldsItsBoundAndLeavesARefusedTaskAlone) {
  std::promise<void> begun;
  std::promise<void> go;
  TaskPool pool(1, 2);
  ASSERT_TRUE(pool.try_post([&begun, wait = go.get_future()] {
    begun.set_value();
    wait.wait();
  }));
  begun.get_future().wait();  // it runs, so it waits no more
  EXPECT_TRUE(pool.try_post([] {}));
  EXPECT_TRUE(pool.try_post([] {}));
  TaskPool::Task late = [] {};
  EXPECT_FALSE(pool.try_post(std::move(late)));
  EXPECT_TRUE(late);  // NOLINT(bugprone-use-after-move): a refused task is not moved from
  go.set_value();
}

TEST(TaskPool, TakesNothingOnceClosed) {
  std::atomic<int> ran = 0;
  TaskPool pool(1, 4);
  EXPECT_TRUE(pool.try_post([&ran] { ++ran; }));
  pool.close();
  EXPECT_FALSE(pool.try_post([&ran] { ++ran; }));
  pool.join();
  pool.join();  // idempotent
  EXPECT_EQ(ran, 1);
}

TEST(TaskPool, TasksRunBesideEachOther) {
  std::promise<void> first;
  std::promise<void> second;
  TaskPool pool(2, 2);
  ASSERT_TRUE(pool.try_post([&] {
    first.set_value();
    second.get_future().wait();
  }));
  ASSERT_TRUE(pool.try_post([&] {
    first.get_future().wait();
    second.set_value();
  }));
}

}  // namespace
}  // namespace galley
