#include "cache/block_history.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace galley::cache {

std::uint64_t content_of(std::uint64_t parent, std::span<const TokenId> tokens) {
  std::uint64_t hash = parent ^ 0xCBF29CE484222325U;
  for (const TokenId token : tokens) {
    hash = (hash ^ token) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  }
  return hash;
}

BlockHistory::BlockHistory(std::size_t evicted_max) : evicted_max_(evicted_max) {
  GALLEY_ASSERT(evicted_max > 0);
}

std::size_t BlockHistory::place_of(const BlockKey& key) const {
  return std::hash<BlockKey>()(key) % evicted_max_;
}

void BlockHistory::published(const Entry& entry) {
  const auto [block, is_new] = known_.try_emplace(entry.key);
  if (is_new) {
    std::list<BlockKey>& children = children_[entry.parent];
    block->second = {.parent = entry.parent,
                     .content = entry.content,
                     .tokens = {entry.tokens.begin(), entry.tokens.end()},
                     .place = children.insert(children.end(), entry.key)};
    ++contents_[entry.content];
  }
}

void BlockHistory::evicted(const BlockKey& key) {
  const auto found = known_.find(key);
  GALLEY_ASSERT(found != known_.end());
  const auto children = children_.find(found->second.parent);
  children->second.erase(found->second.place);
  if (children->second.empty()) {
    children_.erase(children);
  }
  const auto content = contents_.find(found->second.content);
  if (--content->second == 0) {
    contents_.erase(content);
  }
  known_.erase(found);
  evicted_.resize(evicted_max_);
  evicted_[place_of(key)] = key;
}

BlockHistory::Reason BlockHistory::explain(const Entry& wanted) const {
  Reason out{.other_scope = contents_.contains(wanted.content)};
  if (!evicted_.empty() && evicted_[place_of(wanted.key)] == wanted.key) {
    out.miss = Miss::kEvicted;
    return out;
  }
  // The newest of what its own tenant and user went on with.
  const auto children = children_.find(wanted.parent);
  if (children != children_.end()) {
    const std::vector<TokenId>& stored = known_.at(children->second.back()).tokens;
    const auto same = std::ranges::mismatch(stored, wanted.tokens).in1 - stored.begin();
    out.miss = same > 0 ? Miss::kDifferent : Miss::kNotStored;
    out.tokens = static_cast<std::size_t>(same);
  }
  return out;
}

}  // namespace galley::cache
