#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "cache/block_key.h"

namespace galley::cache {

enum class Miss : std::uint8_t {
  kNotStored,  // its tenant and user did not ask with these tokens so far
  kDifferent,  // what is stored behind the same beginning goes on with other tokens
  kEvicted,    // it made room for others
};

// Names what stands in the blocks up to one, whoever they belong to; of no use where a wrong answer
// would matter. 0 is the parent of the first block.
[[nodiscard]] std::uint64_t content_of(std::uint64_t parent, std::span<const TokenId> tokens);

// What the blocks of a pool say, and which of them had to go, so that a miss can be told why. Holds
// the tokens of known blocks, half a kilobyte each, and the names of `evicted_max` or fewer that
// made room. Single-threaded.
class BlockHistory {
 public:
  static constexpr std::size_t kEvictedMax = std::size_t{1} << 16U;

  explicit BlockHistory(std::size_t evicted_max = kEvictedMax);

  struct Entry {
    BlockKey key;
    BlockKey parent;
    std::uint64_t content{};
    std::span<const TokenId> tokens;
  };
  void published(const Entry& entry);
  // Of a known block: it is no more.
  void evicted(const BlockKey& key);

  // But for the last member it is made of blocks under the same root alone, so a client may see it.
  struct Reason {
    Miss miss{};
    std::size_t tokens{};  // of the block, that were as stored before the first that was not
    bool other_scope{};    // another tenant or user has it: for operators' eyes, not for clients'
  };
  // Why `wanted`, the first block that is not known, is not: its parent is.
  [[nodiscard]] Reason explain(const Entry& wanted) const;
  [[nodiscard]] std::size_t known() const { return known_.size(); }

 private:
  struct Known {
    BlockKey parent;
    std::uint64_t content{};
    std::vector<TokenId> tokens;
    std::list<BlockKey>::iterator place;  // among its parent's children
  };
  [[nodiscard]] std::size_t place_of(const BlockKey& key) const;

  const std::size_t evicted_max_;
  std::unordered_map<BlockKey, Known> known_;
  std::unordered_map<BlockKey, std::list<BlockKey>> children_;  // known, by parent; newest last
  std::unordered_map<std::uint64_t, std::size_t> contents_;     // known blocks of each
  std::vector<BlockKey> evicted_;                               // each at its place, newest stays
};

}  // namespace galley::cache
