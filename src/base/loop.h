#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/clock.h"

// Tasks that run one after another on one time axis. Code that needs timers takes a Loop&:
// production gives it a RealLoop, tests and simulations a VirtualLoop.
namespace galley {

// A task runs once, on the loop's thread, and must not throw.
using Task = std::move_only_function<void()>;

class Loop : public Clock {
 public:
  // Runs `task` once now() >= due; a time that has passed means now. Tasks run in the order of
  // their due times, and of their at() calls when those are equal.
  virtual void at(TimeNs due, Task task) = 0;

  void after(Duration delay, Task task) { at(now() + delay, std::move(task)); }
  // Runs `task` after everything already due.
  void post(Task task) { at(now(), std::move(task)); }
};

// The order both loops share: a heap by due time, ties broken by insertion. Not thread-safe.
class TaskQueue {
 public:
  // Whoever hands tasks to a loop has a bound of its own (requests, connections); more pending
  // tasks than this is a leak of ours, so push() asserts it.
  static constexpr std::size_t kTasksMax = std::size_t{1} << 18;

  void push(TimeNs due, Task task);
  // The earliest task, which must exist.
  [[nodiscard]] Task pop();
  [[nodiscard]] TimeNs next_due() const;
  [[nodiscard]] bool empty() const { return heap_.empty(); }

 private:
  struct Entry {
    TimeNs due;
    std::uint64_t order;
    Task task;
  };
  static bool later(const Entry& a, const Entry& b);

  std::vector<Entry> heap_;
  std::uint64_t next_order_ = 0;
};

}  // namespace galley
