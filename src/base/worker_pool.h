#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace galley {

// A borrowed callable `void(std::size_t task)`; lives only for the call it is passed to.
class TaskRef {
 public:
  template <class F>
  TaskRef(const F& f)  // NOLINT(google-explicit-constructor)
      : object_(&f), call_([](const void* object, std::size_t task) {
          (*static_cast<const F*>(object))(task);
        }) {}
  void operator()(std::size_t task) const { call_(object_, task); }

 private:
  const void* object_;
  void (*call_)(const void*, std::size_t);
};

// Threads that share the tasks of one job after another. The caller of run() is worker 0 and works
// too, so a pool of one has no threads. Each worker begins with a share of consecutive tasks, whose
// data lie one behind the other, and takes from the others' shares when its own is done: a worker
// that loses its core to another program delays only the task it holds. Workers spin for kSpin
// between jobs and then sleep, so that a step is not broken by wake-ups and an idle pool costs
// nothing.
//
// One thread at a time may call run(). Which worker runs a task is not defined; results must not
// depend on it.
class WorkerPool {
 public:
  static constexpr int kSpinMicroseconds = 50;

  // `threads` >= 1 in all. Worker i is pinned to core `i` when `pin` is set and the
  // machine has it. Throws std::system_error when the system starts no more threads.
  explicit WorkerPool(int threads, bool pin = false);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int threads() const { return static_cast<int>(workers_.size()) + 1; }
  // Calls task(0) ... task(count - 1), each once, and returns when all are done.
  void run(std::size_t count, TaskRef task);

 private:
  // Tasks [next, end) are still to be taken.
  struct alignas(64) Share {
    std::atomic<std::size_t> next{0};
    std::size_t end = 0;
  };

  void work(std::size_t worker);
  void stop();
  void take_tasks(std::size_t worker);

  std::vector<std::thread> workers_;
  const TaskRef* job_ = nullptr;
  std::vector<Share> shares_;            // one a worker
  std::atomic<std::uint64_t> epoch_{0};  // number of jobs started; a change wakes the workers
  std::atomic<int> busy_{0};             // workers still inside the current job
  std::atomic<bool> stop_{false};
};

}  // namespace galley
