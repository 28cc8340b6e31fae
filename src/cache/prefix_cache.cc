#include "cache/prefix_cache.h"

#include <utility>

#include "base/check.h"

namespace galley::cache {

PrefixCache::PrefixCache(std::size_t blocks,
                         std::move_only_function<void(const BlockKey&)> on_evict)
    : blocks_(blocks), on_evict_(std::move(on_evict)) {
  GALLEY_ASSERT(blocks < kNone);
  for (std::size_t i = blocks; i > 0; --i) {
    free_.push_back(static_cast<std::uint32_t>(i - 1));
  }
}

PrefixCache::Block& PrefixCache::at(BlockId block) {
  GALLEY_ASSERT(block.value() < blocks_.size());
  return blocks_[block.value()];
}

std::optional<BlockId> PrefixCache::allocate() {
  std::uint32_t index = oldest_;
  if (!free_.empty()) {
    index = free_.back();
    free_.pop_back();
  } else if (index != kNone) {
    unlink(index);
    by_key_.erase(*blocks_[index].key);
    if (on_evict_) {
      on_evict_(*blocks_[index].key);
    }
    blocks_[index].key.reset();
    ++evictions_;
  } else {
    return std::nullopt;
  }
  blocks_[index].users = 1;
  return BlockId(index);
}

void PrefixCache::share(BlockId block) {
  GALLEY_ASSERT(at(block).users > 0);
  hold(block);
}

void PrefixCache::release(BlockId block) {
  Block& one = at(block);
  GALLEY_ASSERT(one.users > 0);
  if (--one.users > 0) {
    return;
  }
  if (one.withdrawn) {
    return;
  }
  if (one.key) {
    link_newest(block.value());
  } else {
    free_.push_back(block.value());
  }
}

void PrefixCache::withdraw(std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    Block& one = at(block);
    GALLEY_ASSERT(!one.key);
    withdrawn_ += one.withdrawn ? 0 : 1;
    one.withdrawn = true;
  }
  std::erase_if(free_, [&](std::uint32_t index) { return blocks_[index].withdrawn; });
}

bool PrefixCache::publish(BlockId block, const BlockKey& key) {
  Block& one = at(block);
  GALLEY_ASSERT(one.users > 0);
  GALLEY_ASSERT(!one.key || *one.key == key);
  const bool is_new = by_key_.try_emplace(key, block).second;
  if (is_new) {
    one.key = key;
  }
  return is_new;
}

std::optional<BlockId> PrefixCache::acquire(const BlockKey& key) {
  const auto found = by_key_.find(key);
  if (found == by_key_.end()) {
    return std::nullopt;
  }
  hold(found->second);
  return found->second;
}

std::vector<BlockId> PrefixCache::match(std::span<const BlockKey> keys) {
  std::vector<BlockId> out;
  for (const BlockKey& key : keys) {
    const std::optional<BlockId> block = acquire(key);
    if (!block) {
      break;
    }
    out.push_back(*block);
  }
  return out;
}

bool PrefixCache::consistent() const {
  std::size_t held = 0;
  std::size_t keyed = 0;
  std::size_t gone = 0;
  for (const Block& block : blocks_) {
    held += block.users > 0 ? 1U : 0U;
    gone += block.withdrawn && block.users == 0 ? 1U : 0U;
    keyed += block.key ? 1U : 0U;
  }
  std::size_t linked = 0;
  for (std::uint32_t i = oldest_; i != kNone; i = blocks_[i].newer) {
    if (blocks_[i].users != 0 || !blocks_[i].key) {
      return false;
    }
    ++linked;
  }
  return linked == cached_ && keyed == by_key_.size() &&
         held + cached_ + free_.size() + gone == blocks_.size();
}

void PrefixCache::hold(BlockId block) {
  Block& one = at(block);
  if (one.users == 0) {
    unlink(block.value());
  }
  ++one.users;
}

void PrefixCache::unlink(std::uint32_t index) {
  Block& one = blocks_[index];
  (one.older == kNone ? oldest_ : blocks_[one.older].newer) = one.newer;
  (one.newer == kNone ? newest_ : blocks_[one.newer].older) = one.older;
  one.older = one.newer = kNone;
  --cached_;
}

void PrefixCache::link_newest(std::uint32_t index) {
  blocks_[index].older = newest_;
  (newest_ == kNone ? oldest_ : blocks_[newest_].newer) = index;
  newest_ = index;
  ++cached_;
}

}  // namespace galley::cache
