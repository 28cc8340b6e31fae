#pragma once

#include "base/loop.h"

namespace galley {

// A loop whose time moves only when the test or simulation says so. One thread owns it. Time
// starts at 0 and the date at `unix_start`; both advance together.
class VirtualLoop final : public Loop {
 public:
  explicit VirtualLoop(UnixTime unix_start = {}) : unix_start_(unix_start) {}

  [[nodiscard]] TimeNs now() const override { return now_; }
  [[nodiscard]] UnixTime unix_time() const override {
    return unix_start_ + now_.time_since_epoch();
  }
  void at(TimeNs due, Task task) override;

  // Runs everything due up to and including `time`, then it is `time`.
  void run_until(TimeNs time);
  // Runs until no task is left, jumping from one due time to the next. False when `tasks_max` have
  // run and some are left: something keeps itself alive.
  [[nodiscard]] bool run_until_quiet(std::uint64_t tasks_max = 1'000'000);

 private:
  void run_next();

  TimeNs now_{};
  UnixTime unix_start_;
  TaskQueue queue_;
};

}  // namespace galley
