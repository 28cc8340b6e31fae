#include "base/loop.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace galley {

bool TaskQueue::later(const Entry& a, const Entry& b) {
  return std::pair(a.due, a.order) > std::pair(b.due, b.order);
}

void TaskQueue::push(TimeNs due, Task task) {
  GALLEY_ASSERT(heap_.size() < kTasksMax);
  heap_.push_back({due, next_order_++, std::move(task)});
  std::ranges::push_heap(heap_, later);
}

Task TaskQueue::pop() {
  GALLEY_ASSERT(!heap_.empty());
  std::ranges::pop_heap(heap_, later);
  Task task = std::move(heap_.back().task);
  heap_.pop_back();
  return task;
}

TimeNs TaskQueue::next_due() const {
  GALLEY_ASSERT(!heap_.empty());
  return heap_.front().due;
}

}  // namespace galley
