#pragma once

#include <functional>
#include <memory>
#include <span>

#include "cache/block_store.h"

namespace galley::engine {

// A store that does what another does; tests change a part of it.
class StoreForTest : public cache::BlockStore {
 public:
  // `store` outlives it.
  explicit StoreForTest(cache::BlockStore& store) : store_(store) {}

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
    store_.read_all(lease, first, memory, done);
  }

 private:
  cache::BlockStore& store_;
};

}  // namespace galley::engine
