#include "base/serial_executor.h"

#include <utility>

namespace galley {

SerialExecutor::SerialExecutor() : thread_([this] { run(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SerialExecutor::post(std::move_only_function<void()> job) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() < kPendingMax; });
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void SerialExecutor::run() {
  for (;;) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (jobs_.empty()) {
      return;
    }
    std::move_only_function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    changed_.notify_all();
    job();
  }
}

}  // namespace galley
