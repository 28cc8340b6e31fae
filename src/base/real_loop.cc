#include "base/real_loop.h"

#include <algorithm>

namespace galley {
namespace {

// The longest single wait: keeps `now + wait` far from overflow for tasks due "never".
constexpr Duration kWaitMax = std::chrono::hours(1);

}  // namespace

void RealLoop::at(TimeNs due, Task task) {
  {
    const MutexLock lock(mutex_);
    // Read under the lock, so that tasks posted by several threads keep the order of their calls.
    queue_.push(std::max(due, now()), std::move(task));
  }
  changed_.notify_one();
}

std::optional<Task> RealLoop::next_task() {
  const MutexLock lock(mutex_);
  while (!stopped_) {
    if (queue_.empty()) {
      changed_.wait(mutex_);
      continue;
    }
    const TimeNs time = now();
    if (queue_.next_due() <= time) {
      return queue_.pop();
    }
    changed_.wait_for(mutex_, std::min(queue_.next_due() - time, kWaitMax));
  }
  return std::nullopt;
}

void RealLoop::run() {
  while (std::optional<Task> task = next_task()) {
    (*task)();
  }
}

void RealLoop::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }
  changed_.notify_all();
}

}  // namespace galley
