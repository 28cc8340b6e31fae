// Goal: the queue keeps order and its bound, loses nothing between threads, and closes cleanly.
// Method: one thread at the bound and one past it; then several threads, also under tsan.
#include "base/bounded_queue.h"

#include <gtest/gtest.h>
#include <memory>
#include <thread>
#include <vector>

namespace galley {
namespace {

TEST(BoundedQueue, KeepsOrderAndBound) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.try_push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.try_push(std::move(third)));
  ASSERT_TRUE(third) << "a refused item stays with the caller";
  EXPECT_EQ(**queue.pop(), 1);
  EXPECT_TRUE(queue.try_push(std::move(third)));
  EXPECT_EQ(**queue.try_pop(), 2);
  EXPECT_EQ(**queue.pop(), 3);
  EXPECT_FALSE(queue.try_pop());
}

TEST(BoundedQueue, AClosedQueueDrainsAndThenEnds) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.try_push(1));
  queue.close();
  queue.close();
  EXPECT_FALSE(queue.try_push(2));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
}

TEST(BoundedQueue, CloseWakesEveryWaiter) {
  BoundedQueue<int> queue(1);
  std::vector<std::jthread> waiters;
  for (int i = 0; i < 3; ++i) {
    waiters.emplace_back([&] { EXPECT_EQ(queue.pop(), std::nullopt); });
  }
  queue.close();
}

TEST(BoundedQueue, NothingIsLostOrDoubledBetweenThreads) {
  constexpr int kProducers = 3;
  constexpr int kConsumers = 2;
  constexpr int kItems = 500;
  BoundedQueue<int> queue(8);
  std::vector<std::vector<int>> taken(kConsumers);
  {
    std::vector<std::jthread> consumers;
    for (auto& mine : taken) {
      consumers.emplace_back([&queue, &mine] {
        while (const auto item = queue.pop()) {
          mine.push_back(*item);
        }
      });
    }
    std::vector<std::jthread> producers;
    for (int producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&queue, producer] {
        for (int i = 0; i < kItems; ++i) {
          while (!queue.try_push(producer * kItems + i)) {
            std::this_thread::yield();
          }
        }
      });
    }
    producers.clear();  // joins
    queue.close();
  }
  std::vector<int> seen(kProducers * kItems, 0);
  for (const auto& mine : taken) {
    std::vector<int> last(kProducers, -1);
    for (const int item : mine) {
      ++seen[static_cast<std::size_t>(item)];
      int& before = last[static_cast<std::size_t>(item / kItems)];
      EXPECT_LT(before, item) << "one consumer sees each producer's items in order";
      before = item;
    }
  }
  EXPECT_EQ(seen, std::vector<int>(kProducers * kItems, 1));
}

}  // namespace
}  // namespace galley
