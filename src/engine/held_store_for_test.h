#pragma once

#include <functional>
#include <memory>
#include <span>

#include "base/mutex.h"
#include "cache/block_store.h"

namespace galley::engine {

// A store whose reads wait until they are let go.
class HeldStore final : public cache::BlockStore {
 public:
  // `store` outlives it.
  explicit HeldStore(cache::BlockStore& store) : store_(store) {}

  Result<cache::PutOutcome> put(const cache::NewBlock& block) override { return store_.put(block); }
  Result<void> commit() override { return store_.commit(); }
  [[nodiscard]] std::unique_ptr<cache::BlockLease> match(const cache::BlockQuery& query) override {
    return store_.match(query);
  }
  Result<cache::BlockView> read_into(const cache::BlockLease& lease,
                                     std::size_t index,
                                     std::span<std::byte> memory) override {
    return store_.read_into(lease, index, memory);
  }
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
    store_.read_all(lease, first, memory, done);
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
  cache::BlockStore& store_;
  Mutex mutex_;
  CondVar changed_;
  bool reading_ GALLEY_GUARDED_BY(mutex_) = false;
  bool held_ GALLEY_GUARDED_BY(mutex_) = true;
};

}  // namespace galley::engine
