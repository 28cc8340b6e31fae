#include "base/virtual_loop.h"

#include <algorithm>

#include "base/check.h"

namespace galley {

void VirtualLoop::at(TimeNs due, Task task) {
  queue_.push(std::max(due, now_), std::move(task));
}

void VirtualLoop::run_next() {
  GALLEY_ASSERT(queue_.next_due() >= now_);
  now_ = queue_.next_due();
  queue_.pop()();
}

void VirtualLoop::run_until(TimeNs time) {
  GALLEY_ASSERT(time >= now_);
  while (!queue_.empty() && queue_.next_due() <= time) {
    run_next();
  }
  now_ = time;
}

bool VirtualLoop::run_until_quiet(std::uint64_t tasks_max) {
  for (std::uint64_t ran = 0; !queue_.empty(); ++ran) {
    if (ran == tasks_max) {
      return false;
    }
    run_next();
  }
  return true;
}

}  // namespace galley
