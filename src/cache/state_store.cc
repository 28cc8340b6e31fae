#include "cache/state_store.h"

#include <utility>

namespace galley::cache {

bool StateStore::put(const BlockKey& key, std::shared_ptr<const State> state, TimeNs now) {
  expire(now);
  const std::size_t bytes = state->bytes();
  if (by_key_.contains(key) || bytes > room_) {
    return false;
  }
  while (bytes_ + bytes > room_) {
    drop(kept_.begin());
  }
  bytes_ += bytes;
  kept_.push_back({.key = key, .state = std::move(state), .used = now});
  by_key_.emplace(key, std::prev(kept_.end()));
  return true;
}

std::shared_ptr<const State> StateStore::find(const BlockKey& key, TimeNs now) {
  expire(now);
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    return nullptr;
  }
  found->second->used = now;
  kept_.splice(kept_.end(), kept_, found->second);
  return found->second->state;
}

void StateStore::forget(const BlockKey& key, const State* state) {
  const auto found = by_key_.find(key);
  if (found != by_key_.end() && found->second->state.get() == state) {
    drop(found->second);
  }
}

void StateStore::expire(TimeNs now) {
  while (!kept_.empty() && now - kept_.front().used >= kStateLife) {
    drop(kept_.begin());
  }
}

void StateStore::drop(Place place) {
  bytes_ -= place->state->bytes();
  by_key_.erase(place->key);
  kept_.erase(place);
}

}  // namespace galley::cache
