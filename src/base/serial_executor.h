#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"

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

  void post(std::move_only_function<void()> job) GALLEY_EXCLUDES(mutex_);

 private:
  // Waits for one; nothing once stopped and empty.
  std::optional<std::move_only_function<void()>> next_job() GALLEY_EXCLUDES(mutex_);
  void run() GALLEY_EXCLUDES(mutex_);

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::move_only_function<void()>> jobs_ GALLEY_GUARDED_BY(mutex_);
  bool stop_ GALLEY_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace galley
