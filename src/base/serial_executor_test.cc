// Goal: jobs run in order on one thread, all of them, and a producer that is ahead waits.
// Method: jobs that wait for the test through futures; no sleeps.
#include "base/serial_executor.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <gtest/gtest.h>
#include <thread>
#include <vector>

namespace galley {
namespace {

TEST(SerialExecutor, RunsEveryJobInOrderBeforeItEnds) {
  std::vector<int> ran;
  {
    SerialExecutor executor;
    for (int i = 0; i < 100; ++i) {
      executor.post([&ran, i] { ran.push_back(i); });
    }
  }
  ASSERT_EQ(ran.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(ran));
}

TEST(SerialExecutor, AFullQueueSlowsTheProducerDown) {
  std::promise<void> begun;
  std::promise<void> go;
  std::atomic<std::size_t> posted = 0;
  SerialExecutor executor;
  executor.post([&begun, wait = go.get_future()] {
    begun.set_value();
    wait.wait();
  });
  begun.get_future().wait();
  auto producer = std::async(std::launch::async, [&] {
    for (; posted < SerialExecutor::kPendingMax + 10; ++posted) {
      executor.post([] {});
    }
  });
  while (posted < SerialExecutor::kPendingMax) {
    std::this_thread::yield();
  }
  EXPECT_EQ(posted.load(), SerialExecutor::kPendingMax);  // the next one waits
  go.set_value();
  producer.wait();
  EXPECT_EQ(posted.load(), SerialExecutor::kPendingMax + 10);
}

}  // namespace
}  // namespace galley
