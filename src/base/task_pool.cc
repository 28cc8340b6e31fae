#include "base/task_pool.h"

#include "base/check.h"

namespace galley {

TaskPool::TaskPool(std::size_t threads, std::size_t waiting_max) : waiting_(waiting_max) {
  GALLEY_ASSERT(threads >= 1);
  threads_.reserve(threads);
  for (std::size_t i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      while (std::optional<Task> task = waiting_.pop()) {
        (*task)();
      }
    });
  }
}

void TaskPool::join() {
  close();
  for (std::thread& thread : threads_) {
    thread.join();
  }
  threads_.clear();
}

}  // namespace galley
