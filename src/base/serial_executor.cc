#include "base/serial_executor.h"

#include <utility>

namespace galley {

SerialExecutor::SerialExecutor() : thread_([this] { run(); }) {}

SerialExecutor::~SerialExecutor() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SerialExecutor::post(std::move_only_function<void()> job) {
  {
    const MutexLock lock(mutex_);
    while (jobs_.size() >= kPendingMax) {
      changed_.wait(mutex_);
    }
    jobs_.push_back(std::move(job));
  }
  changed_.notify_all();
}

std::optional<std::move_only_function<void()>> SerialExecutor::next_job() {
  const MutexLock lock(mutex_);
  while (!stop_ && jobs_.empty()) {
    changed_.wait(mutex_);
  }
  if (jobs_.empty()) {
    return std::nullopt;
  }
  std::move_only_function<void()> job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void SerialExecutor::run() {
  while (auto job = next_job()) {
    changed_.notify_all();  // there is room
    (*job)();
  }
}

}  // namespace galley
