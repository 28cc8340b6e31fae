#pragma once

#include <optional>

#include "base/loop.h"
#include "base/mutex.h"
#include "base/real_clock.h"

namespace galley {

// A loop on the machine's clock. One thread calls run(); any thread may call the rest. Tasks still
// pending when the loop is destroyed are dropped unrun.
class RealLoop final : public Loop {
 public:
  [[nodiscard]] TimeNs now() const override { return clock_.now(); }
  [[nodiscard]] UnixTime unix_time() const override { return clock_.unix_time(); }
  void at(TimeNs due, Task task) override GALLEY_EXCLUDES(mutex_);

  // Runs tasks until stop(); returns once the task then running is done.
  void run() GALLEY_EXCLUDES(mutex_);
  // Final: a run() that comes later returns at once.
  void stop() GALLEY_EXCLUDES(mutex_);

 private:
  // Waits for the next due task; nothing once stopped.
  std::optional<Task> next_task() GALLEY_EXCLUDES(mutex_);

  RealClock clock_;
  Mutex mutex_;
  CondVar changed_;
  TaskQueue queue_ GALLEY_GUARDED_BY(mutex_);
  bool stopped_ GALLEY_GUARDED_BY(mutex_) = false;
};

}  // namespace galley
