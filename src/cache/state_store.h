#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>

#include "base/units.h"
#include "cache/block_key.h"

namespace galley::cache {

// What a device remembers of a sequence besides its blocks, where a block ends: its windows. Only
// the device can read it.
class State {
 public:
  State() = default;
  virtual ~State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  [[nodiscard]] virtual std::size_t bytes() const = 0;
};

// States of sequences in memory, by the key of the block that ends there (spec runtime 8.5). What
// was not asked for in kStateLife is forgotten, and what was used longest ago makes room.
// Single-threaded, without a clock: times come in.
class StateStore {
 public:
  explicit StateStore(Bytes room) : room_(room.value()) {}

  // False when there is one already, which is as good and stays, or no room for one.
  bool put(const BlockKey& key, std::shared_ptr<const State> state, TimeNs now);
  // Null: there is none.
  [[nodiscard]] std::shared_ptr<const State> find(const BlockKey& key, TimeNs now);
  // If the key's is that very one.
  void forget(const BlockKey& key, const State* state);

  [[nodiscard]] std::size_t size() const { return by_key_.size(); }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  struct Kept {
    BlockKey key;
    std::shared_ptr<const State> state;
    TimeNs used;
  };
  using Place = std::list<Kept>::iterator;

  void expire(TimeNs now);
  void drop(Place place);

  const std::size_t room_;
  std::size_t bytes_ = 0;
  std::list<Kept> kept_;  // used longest ago first
  std::unordered_map<BlockKey, Place> by_key_;
};

// A next turn mostly comes within.
inline constexpr Duration kStateLife = std::chrono::seconds(180);

}  // namespace galley::cache
