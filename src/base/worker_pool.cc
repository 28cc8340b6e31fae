#include "base/worker_pool.h"

#include <chrono>
#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include "base/check.h"

namespace galley {
namespace {

// Spinning is counted in pauses, not read from a clock: about 40 ns each on current cores.
constexpr int kPausesPerMicrosecond = 25;

template <class Done>
bool spin_until(Done done) {
  for (int i = 0; i < WorkerPool::kSpinMicroseconds * kPausesPerMicrosecond; ++i) {
    if (done()) {
      return true;
    }
    _mm_pause();
  }
  return false;
}

std::size_t checked(int threads) {
  GALLEY_ASSERT(threads >= 1);
  return static_cast<std::size_t>(threads);
}

void pin_to_core(std::thread& thread, int core) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(static_cast<std::size_t>(core), &cores);
  // A refusal (core not ours) leaves the thread unpinned, which is slower and right.
  pthread_setaffinity_np(thread.native_handle(), sizeof(cores), &cores);
}

}  // namespace

WorkerPool::WorkerPool(int threads, bool pin) : shares_(checked(threads)) {
  try {
    for (int i = 1; i < threads; ++i) {
      workers_.emplace_back([this, i] { work(static_cast<std::size_t>(i)); });
      if (pin) {
        pin_to_core(workers_.back(), i);
      }
    }
  } catch (...) {  // the system refuses another thread: those that run must end first
    stop();
    throw;
  }
}

WorkerPool::~WorkerPool() {
  stop();
}

void WorkerPool::stop() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& worker : workers_) {
    worker.join();
  }
}

void WorkerPool::run(std::size_t count, TaskRef task) {
  if (workers_.empty() || count <= 1) {
    for (std::size_t i = 0; i < count; ++i) {
      task(i);
    }
    return;
  }
  job_ = &task;
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    shares_[i].next.store(count * i / shares_.size(), std::memory_order_relaxed);
    shares_[i].end = count * (i + 1) / shares_.size();
  }
  busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_tasks(0);
  const auto idle = [this] { return busy_.load(std::memory_order_acquire) == 0; };
  while (!spin_until(idle)) {
    const int left = busy_.load(std::memory_order_acquire);
    if (left != 0) {
      busy_.wait(left, std::memory_order_acquire);
    }
  }
}

void WorkerPool::take_tasks(std::size_t worker) {
  for (std::size_t i = 0; i < shares_.size(); ++i) {
    Share& share = shares_[(worker + i) % shares_.size()];
    for (;;) {
      const std::size_t task = share.next.fetch_add(1, std::memory_order_relaxed);
      if (task >= share.end) {
        break;
      }
      (*job_)(task);
    }
  }
}

void WorkerPool::work(std::size_t worker) {
  std::uint64_t seen = 0;
  for (;;) {
    const auto started = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    while (!spin_until(started)) {
      epoch_.wait(seen, std::memory_order_acquire);
    }
    ++seen;
    if (stop_.load(std::memory_order_relaxed)) {
      return;
    }
    take_tasks(worker);
    if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      busy_.notify_one();
    }
  }
}

}  // namespace galley
