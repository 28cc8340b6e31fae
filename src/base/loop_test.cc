// Goal: both loops run tasks in due order with ties by insertion; virtual time moves only by
// tasks or by command; the real loop takes tasks from other threads and stops.
// Method: logs of what ran; the real loop is stopped by its own tasks, so nothing sleeps.
#include <algorithm>
#include <future>
#include <gtest/gtest.h>
#include <string>
#include <thread>
#include <vector>

#include "base/loop_thread.h"
#include "base/real_loop.h"
#include "base/virtual_loop.h"

namespace galley {
namespace {

using namespace std::chrono_literals;

TEST(VirtualLoop, RunsByDueTimeThenByOrder) {
  VirtualLoop loop;
  std::string ran;
  loop.at(TimeNs(20ns), [&] { ran += 'c'; });
  loop.at(TimeNs(10ns), [&] { ran += 'a'; });
  loop.at(TimeNs(10ns), [&] { ran += 'b'; });
  loop.at(TimeNs(20ns), [&] { ran += 'd'; });
  EXPECT_TRUE(ran.empty());
  EXPECT_TRUE(loop.run_until_quiet());
  EXPECT_EQ(ran, "abcd");
  EXPECT_EQ(loop.now(), TimeNs(20ns));
}

TEST(VirtualLoop, ManyTiesKeepInsertionOrder) {
  VirtualLoop loop;
  std::vector<int> ran;
  for (int i = 0; i < 100; ++i) {
    loop.at(TimeNs(Duration(i % 3)), [&ran, i] { ran.push_back(i); });
  }
  EXPECT_TRUE(loop.run_until_quiet());
  for (std::size_t i = 1; i < ran.size(); ++i) {
    EXPECT_LT(std::pair(ran[i - 1] % 3, ran[i - 1]), std::pair(ran[i] % 3, ran[i]));
  }
  EXPECT_EQ(ran.size(), 100U);
}

TEST(VirtualLoop, RunUntilIncludesItsEndAndAdvancesWithoutTasks) {
  VirtualLoop loop;
  int ran = 0;
  loop.at(TimeNs(10ns), [&] { ++ran; });
  loop.at(TimeNs(11ns), [&] { ++ran; });
  loop.run_until(TimeNs(10ns));
  EXPECT_EQ(ran, 1);
  EXPECT_EQ(loop.now(), TimeNs(10ns));
  loop.run_until(TimeNs(1s));
  EXPECT_EQ(ran, 2);
  EXPECT_EQ(loop.now(), TimeNs(1s));
}

TEST(VirtualLoop, TasksSeeTheirDueTimeAndMayAddMore) {
  VirtualLoop loop;
  std::vector<std::int64_t> times;
  loop.at(TimeNs(5ns), [&] {
    times.push_back(loop.now().time_since_epoch().count());
    loop.post([&] { times.push_back(loop.now().time_since_epoch().count()); });
    loop.after(3ns, [&] { times.push_back(loop.now().time_since_epoch().count()); });
  });
  EXPECT_TRUE(loop.run_until_quiet());
  EXPECT_EQ(times, (std::vector<std::int64_t>{5, 5, 8}));
}

TEST(VirtualLoop, APastTimeMeansNowAndOvertakesNobody) {
  VirtualLoop loop;
  loop.run_until(TimeNs(100ns));
  std::string ran;
  loop.post([&] { ran += 'a'; });
  loop.at(TimeNs(1ns), [&] { ran += 'b'; });
  EXPECT_TRUE(loop.run_until_quiet());
  EXPECT_EQ(ran, "ab");
  EXPECT_EQ(loop.now(), TimeNs(100ns));
}

TEST(VirtualLoop, QuietIsBounded) {
  VirtualLoop loop;
  std::uint64_t ran = 0;
  std::function<void()> again = [&] {
    ++ran;
    loop.after(1ns, again);
  };
  loop.post(again);
  EXPECT_FALSE(loop.run_until_quiet(7));
  EXPECT_EQ(ran, 7U);
  VirtualLoop once;
  once.post([] {});
  EXPECT_TRUE(once.run_until_quiet(1));
}

TEST(VirtualLoop, TheDateAdvancesWithTime) {
  VirtualLoop loop(UnixTime(1'700'000'000s));
  loop.run_until(TimeNs(1999ms));
  EXPECT_EQ(loop.unix_seconds(), 1'700'000'001);
}

TEST(TaskQueueDeathTest, ALeakOfTasksIsABug) {
  TaskQueue queue;
  for (std::size_t i = 0; i < TaskQueue::kTasksMax; ++i) {
    queue.push(TimeNs(Duration(i)), [] {});
  }
  EXPECT_DEATH(queue.push(TimeNs(), [] {}), "kTasksMax");
}

TEST(RealLoop, RunsDueTasksInOrderAndStops) {
  RealLoop loop;
  std::string ran;
  const TimeNs start = loop.now();
  loop.at(start + 1h, [&] { ran += 'x'; });
  loop.post([&] { ran += 'a'; });
  loop.post([&] {
    ran += 'b';
    const TimeNs due = loop.now() + 2ms;
    loop.at(due, [&, due] {
      ran += 'd';
      EXPECT_GE(loop.now(), due);
    });
    loop.at(due, [&] {
      ran += 'e';
      loop.stop();
    });
    loop.at(due - 1ms, [&] { ran += 'c'; });
  });
  loop.run();
  EXPECT_EQ(ran, "abcde");
}

TEST(RealLoop, WakesForTasksOfOtherThreadsInTheirOrder) {
  RealLoop loop;
  std::vector<int> ran;  // touched by the loop's thread only, until it is joined
  std::jthread runner([&] { loop.run(); });
  loop.at(TimeNs::max(), [] { FAIL() << "a task due never ran"; });
  for (int i = 0; i < 100; ++i) {
    loop.post([&ran, i] { ran.push_back(i); });
  }
  loop.post([&] { loop.stop(); });
  runner.join();
  ASSERT_EQ(ran.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(ran));
}

TEST(RealLoop, APastTimeMeansNowAndOvertakesNobody) {
  RealLoop loop;
  std::string ran;
  loop.post([&] { ran += 'a'; });
  loop.at(TimeNs::min(), [&] { ran += 'b'; });
  loop.post([&] { loop.stop(); });
  loop.run();
  EXPECT_EQ(ran, "ab");
}

TEST(RealLoop, StopBeforeRunIsNotLost) {
  RealLoop loop;
  loop.post([] { FAIL() << "ran after stop"; });
  loop.stop();
  loop.run();
}

TEST(RealClock, IsMonotonicAndKnowsTheDate) {
  const RealClock clock;
  const TimeNs before = clock.now();
  EXPECT_GE(clock.now(), before);
  EXPECT_GT(clock.unix_seconds(), 1'700'000'000);
}

TEST(LoopThread, RunsTasksUntilItIsDestroyed) {
  std::promise<void> ran;
  {
    LoopThread thread;
    thread.loop().post([&ran] { ran.set_value(); });
    ran.get_future().wait();
    thread.loop().after(1h, [] { FAIL() << "the loop did not stop"; });
  }
}

}  // namespace
}  // namespace galley
