#pragma once

#include <condition_variable>
#include <mutex>

#include "base/thread_annotations.h"
#include "base/units.h"

// The standard mutex, lock and condition variable with the annotations of
// base/thread_annotations.h. State shared between threads is the exception (style: one thread owns
// each piece of state); its fields say GALLEY_GUARDED_BY(mutex_).
namespace galley {

class GALLEY_CAPABILITY("mutex") Mutex {
 public:
  void lock() GALLEY_ACQUIRE() { mutex_.lock(); }
  void unlock() GALLEY_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class GALLEY_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) GALLEY_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() GALLEY_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

class CondVar {
 public:
  // Both may wake without a notify: call them in a loop that checks the condition.
  void wait(Mutex& mutex) GALLEY_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  void wait_for(Mutex& mutex, Duration limit) GALLEY_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait_for(lock, limit);
    lock.release();
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace galley
