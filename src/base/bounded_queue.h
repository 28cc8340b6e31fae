#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"

namespace galley {

// First in, first out, between any number of threads on either side. Never grows beyond its
// capacity: a full queue is the producer's to report (overloaded), not to wait for.
template <class T>
class BoundedQueue {
 public:
  explicit BoundedQueue(std::size_t capacity) : capacity_(capacity) { GALLEY_ASSERT(capacity > 0); }

  // False when full or closed; `item` is then untouched.
  [[nodiscard]] bool try_push(T&& item) GALLEY_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      if (closed_ || items_.size() == capacity_) {
        return false;
      }
      items_.push_back(std::move(item));
    }
    not_empty_.notify_one();
    return true;
  }

  // Waits for an item. Nothing once the queue is closed and every item has been taken.
  [[nodiscard]] std::optional<T> pop() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    while (items_.empty() && !closed_) {
      not_empty_.wait(mutex_);
    }
    return take();
  }

  // Nothing when empty at the moment.
  [[nodiscard]] std::optional<T> try_pop() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return take();
  }

  // No more pushes; what is inside can still be taken. Wakes every waiting pop(). Idempotent.
  void close() GALLEY_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      closed_ = true;
    }
    not_empty_.notify_all();
  }

 private:
  std::optional<T> take() GALLEY_REQUIRES(mutex_) {
    if (items_.empty()) {
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    return item;
  }

  const std::size_t capacity_;
  Mutex mutex_;
  CondVar not_empty_;
  std::deque<T> items_ GALLEY_GUARDED_BY(mutex_);
  bool closed_ GALLEY_GUARDED_BY(mutex_) = false;
};

}  // namespace galley
