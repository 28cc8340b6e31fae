#include "cache/block_history.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace galley::cache {
namespace {

std::size_t place_of(const BlockKey& key) {
  return std::hash<BlockKey>()(key) % BlockHistory::kEvictedMax;
}

}  // namespace

std::uint64_t content_of(std::uint64_t parent, std::span<const TokenId> tokens) {
  std::uint64_t hash = parent ^ 0xCBF29CE484222325U;
  for (const TokenId token : tokens) {
    hash = (hash ^ token) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 29U;
  }
  return hash;
}

void BlockHistory::published(const Entry& entry) {
  const bool is_new =
      known_
          .try_emplace(entry.key, Known{.parent = entry.parent,
                                        .content = entry.content,
                                        .tokens = {entry.tokens.begin(), entry.tokens.end()}})
          .second;
  if (is_new) {
    newest_[entry.parent] = entry.key;
    ++contents_[entry.content];
  }
}

void BlockHistory::evicted(const BlockKey& key) {
  const auto found = known_.find(key);
  GALLEY_ASSERT(found != known_.end());
  const auto child = newest_.find(found->second.parent);
  if (child != newest_.end() && child->second == key) {
    newest_.erase(child);
  }
  const auto content = contents_.find(found->second.content);
  if (--content->second == 0) {
    contents_.erase(content);
  }
  known_.erase(found);
  evicted_.resize(kEvictedMax);
  evicted_[place_of(key)] = key;
}

BlockHistory::Reason BlockHistory::explain(const Entry& wanted) const {
  if (!evicted_.empty() && evicted_[place_of(wanted.key)] == wanted.key) {
    return {.miss = Miss::kEvicted};
  }
  if (contents_.contains(wanted.content)) {
    return {.miss = Miss::kOtherScope};
  }
  const auto child = newest_.find(wanted.parent);
  if (child == newest_.end()) {
    return {.miss = Miss::kNotStored};
  }
  const std::vector<TokenId>& stored = known_.at(child->second).tokens;
  const auto same = std::ranges::mismatch(stored, wanted.tokens).in1 - stored.begin();
  return {.miss = same > 0 ? Miss::kDifferent : Miss::kNotStored,
          .tokens = static_cast<std::size_t>(same)};
}

}  // namespace galley::cache
