#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "cache/block_key.h"

namespace galley::cache {

// A block's place in the pool, 0 to blocks() - 1.
using BlockId = Id<struct BlockTag, std::uint32_t>;

// Which block of a pool holds what, and who uses it; the bytes are the device's. A block is free,
// or held by one or more users, or cached: held by none but known by its key, until its place is
// needed. What was released first makes room first, so who releases a chain begins at its end.
// Single-threaded.
class PrefixCache {
 public:
  // `on_evict` is told the key of each block that makes room.
  explicit PrefixCache(std::size_t blocks,
                       std::move_only_function<void(const BlockKey&)> on_evict = {});

  // Of the pool, without those that were withdrawn.
  [[nodiscard]] std::size_t blocks() const { return blocks_.size() - withdrawn_; }
  // Blocks that allocate() can give.
  [[nodiscard]] std::size_t available() const { return free_.size() + cached_; }
  [[nodiscard]] std::size_t cached() const { return cached_; }

  // A block of nobody's, held once; a cached one loses its key for it. Nothing when all are held.
  [[nodiscard]] std::optional<BlockId> allocate();
  // One user more of a held block.
  void share(BlockId block);
  // One user less.
  void release(BlockId block);
  // More than one user holds it.
  [[nodiscard]] bool shared(BlockId block) const { return blocks_.at(block.value()).users > 1; }

  // Blocks that are of no use: they are not given again, those that are held once they come back.
  void withdraw(std::span<const BlockId> blocks);

  // Makes a held block known. A key that is known already keeps its first block: what has equal
  // keys is equal. True when the key is new.
  bool publish(BlockId block, const BlockKey& key);
  // The block of a key, held once more.
  [[nodiscard]] std::optional<BlockId> acquire(const BlockKey& key);
  // The blocks of the longest run of known keys from the first on, each held once more.
  [[nodiscard]] std::vector<BlockId> match(std::span<const BlockKey> keys);

  [[nodiscard]] std::int64_t evictions() const { return evictions_; }
  // Every block is in exactly one state and the counts agree; for tests. Linear.
  [[nodiscard]] bool consistent() const;

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  struct Block {
    std::int32_t users{};
    bool withdrawn = false;
    std::optional<BlockKey> key;
    std::uint32_t older = kNone;  // neighbours in the order of release, of a cached block
    std::uint32_t newer = kNone;
  };

  [[nodiscard]] Block& at(BlockId block);
  void hold(BlockId block);
  void unlink(std::uint32_t index);
  void link_newest(std::uint32_t index);

  std::vector<Block> blocks_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<BlockKey, BlockId> by_key_;
  std::uint32_t oldest_ = kNone;
  std::uint32_t newest_ = kNone;
  std::size_t cached_ = 0;
  std::size_t withdrawn_ = 0;
  std::int64_t evictions_ = 0;
  std::move_only_function<void(const BlockKey&)> on_evict_;
};

}  // namespace galley::cache
