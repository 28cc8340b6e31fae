#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace galley {

// One thread that runs what is posted, in order. post() blocks while kPendingMax jobs wait, so a
// producer that is faster than the thread is slowed down, never unbounded. The destructor runs what
// was posted and then joins.
class SerialExecutor {
 public:
  static constexpr std::size_t kPendingMax = 16'384;

  SerialExecutor();
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;
  SerialExecutor& operator=(const SerialExecutor&) = delete;

  void post(std::move_only_function<void()> job);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::move_only_function<void()>> jobs_;  // guarded by mutex_
  bool stop_ = false;                                 // guarded by mutex_
  std::thread thread_;
};

}  // namespace galley
