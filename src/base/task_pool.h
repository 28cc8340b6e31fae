#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace galley {

// Threads that run what is posted, each task once, on whichever is free. Never waits for room: a
// full pool is the caller's to report. Any thread may call it.
class TaskPool {
 public:
  using Task = std::move_only_function<void()>;  // must not throw

  // `threads` and `waiting_max`, the tasks that wait for a thread, are at least 1.
  TaskPool(std::size_t threads, std::size_t waiting_max);
  ~TaskPool() { join(); }
  TaskPool(const TaskPool&) = delete;
  TaskPool& operator=(const TaskPool&) = delete;

  // False, and `task` is untouched, when too many wait already or the pool is closed.
  [[nodiscard]] bool try_post(Task&& task) { return waiting_.try_push(std::move(task)); }
  // Takes no more tasks.
  void close() { waiting_.close(); }
  // Closes, and returns once everything that was posted has run. One thread, not one of the pool's.
  void join();

 private:
  BoundedQueue<Task> waiting_;
  std::vector<std::thread> threads_;
};

}  // namespace galley
