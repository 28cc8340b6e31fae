#include "plan/fake_traffic.h"

#include <algorithm>
#include <utility>

namespace galley::plan {

using engine::FetchEnd;

Duration FakeTraffic::within(Duration most) {
  return Duration(
      static_cast<std::int64_t>(random_.next_float() * static_cast<double>(most.count())));
}

void FakeTraffic::fetch(engine::FetchOrder order) {
  auto fetch = std::make_shared<Fetch>();
  const engine::RequestId id = order.id;
  fetch->order = std::move(order);
  fetches_.insert_or_assign(id, fetch);
  loop_.after(within(options_.match_max), [this, fetch] { match(fetch); });
}

void FakeTraffic::match(const std::shared_ptr<Fetch>& fetch) {
  engine::FetchState& state = fetch->state;
  state.begun = true;
  for (const cache::BlockKey& key : fetch->order.keys) {
    const auto found = known_.find(key);
    if (found != known_.end() && chance(options_.forgets)) {
      known_.erase(found);
    }
    if (!known_.contains(key)) {
      state.end = chance(128) ? FetchEnd::kUnknown : FetchEnd::kExpired;
      break;
    }
    ++state.promised;
  }
  state.over = state.promised < fetch->order.least;
  if (!state.over && !chance(options_.hangs)) {
    read_next(fetch);
  }
}

void FakeTraffic::read_next(const std::shared_ptr<Fetch>& fetch) {
  loop_.after(within(options_.block_max), [this, fetch] {
    if (fetch->stopped) {
      return;
    }
    engine::FetchState& state = fetch->state;
    if (chance(options_.failures)) {
      state.over = true;
      state.end = FetchEnd::kFailed;
      return;
    }
    const auto place = device_.block_rows(fetch->order.blocks[state.fetched]);
    if (chance(options_.damages)) {
      std::ranges::fill(place, 1);  // the hash of nothing
      state.over = true;
      state.end = FetchEnd::kDamaged;
      return;
    }
    const auto found = known_.find(fetch->order.keys[state.fetched]);
    if (found == known_.end()) {  // gone since it was promised
      state.over = true;
      state.end = FetchEnd::kExpired;
      return;
    }
    std::ranges::copy(found->second, place.begin());
    ++state.fetched;
    state.over = state.fetched == state.promised;
    if (!state.over && !chance(options_.hangs)) {
      read_next(fetch);
    }
  });
}

engine::FetchState FakeTraffic::state(engine::RequestId id) {
  return fetches_.at(id)->state;
}

void FakeTraffic::stop(engine::RequestId id) {
  fetches_.at(id)->stopped = true;
  fetches_.erase(id);
}

void FakeTraffic::write(const engine::WriteOrder& order) {
  const auto place = device_.block_rows(order.block);
  Rows rows(place.begin(), place.end());
  const auto found = known_.find(order.key);
  if (found != known_.end() && found->second != rows) {
    violations_.add("two blocks of one key differ");
  }
  if (!chance(options_.drops)) {
    loop_.after(within(options_.write_max), [this, key = order.key, rows = std::move(rows)] {
      known_.insert_or_assign(key, rows);
    });
  }
}

}  // namespace galley::plan
