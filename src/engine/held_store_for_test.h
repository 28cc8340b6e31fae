#pragma once

#include <functional>
#include <span>

#include "base/mutex.h"
#include "engine/store_for_test.h"

namespace galley::engine {

// A store whose reads wait until they are let go.
class HeldStore final : public StoreForTest {
 public:
  using StoreForTest::StoreForTest;

  void read_all(const cache::BlockLease& lease,
                std::size_t first,
                std::span<const std::span<std::byte>> memory,
                const std::function<void(std::size_t, Result<cache::BlockView>)>& done) override {
    {
      const MutexLock lock(mutex_);
      reading_ = true;
      changed_.notify_all();
      while (held_) {
        changed_.wait(mutex_);
      }
    }
    StoreForTest::read_all(lease, first, memory, done);
  }

  void wait_for_read() {
    const MutexLock lock(mutex_);
    while (!reading_) {
      changed_.wait(mutex_);
    }
  }
  void let_go() {
    const MutexLock lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool reading_ GALLEY_GUARDED_BY(mutex_) = false;
  bool held_ GALLEY_GUARDED_BY(mutex_) = true;
};

}  // namespace galley::engine
