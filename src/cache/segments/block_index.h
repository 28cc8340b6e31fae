#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "base/random.h"
#include "cache/block_key.h"
#include "cache/segments/scope_table.h"

namespace galley::cache {

// Where a record is: pages of a segment, by the store's number for it.
struct BlockPlace {
  std::uint32_t segment{};
  std::uint32_t page{};
  std::uint16_t pages{};  // at least 1
  friend bool operator==(const BlockPlace&, const BlockPlace&) = default;
};

struct IndexEntry {
  BlockPlace place;
  std::uint16_t scope{};
  bool exact{};
  std::uint32_t touched_s{};  // when it was hit last, or written
};

// Key and namespace -> place, in memory: 32 bytes an entry in open addressing, filled to at most
// kLoadMax and grown by a fifth, so 38 to 46 bytes a key. Readers take no lock: they read an entry
// again when a writer was at work on its shard meanwhile. Writers lock one of kShards. Any thread
// may call it.
class BlockIndex {
 public:
  static constexpr std::size_t kShards = 256;
  static constexpr double kLoadMax = 0.85;
  static constexpr double kGrowth = 1.2;

  // `seed` is of the hash, so that nobody can choose keys that meet.
  BlockIndex(const ScopeTable& scopes, Seed seed);
  ~BlockIndex();
  BlockIndex(const BlockIndex&) = delete;
  BlockIndex& operator=(const BlockIndex&) = delete;

  // Touched, too, where `touch_s` is later than its last touch.
  [[nodiscard]] std::optional<IndexEntry> find(std::uint16_t space,
                                               const BlockKey& key,
                                               std::uint32_t touch_s = 0) const;
  // Entries of the longest run of known keys from the first on; they are touched.
  void match(std::uint16_t space,
             std::span<const BlockKey> keys,
             std::uint32_t now_s,
             std::vector<IndexEntry>& out) const;

  // New, or in place of the entry there is where `replaces(old)`. True when it is in now.
  bool insert(std::uint16_t space,
              const BlockKey& key,
              const IndexEntry& entry,
              const std::function<bool(const IndexEntry&)>& replaces);
  // If it is there and still at `place`.
  bool erase(std::uint16_t space, const BlockKey& key, const BlockPlace& place);
  // Every entry for which `gone` holds; how many.
  std::size_t erase_if(const std::function<bool(const IndexEntry&)>& gone);

  [[nodiscard]] std::size_t size() const;
  [[nodiscard]] std::size_t memory_bytes() const;

 private:
  static constexpr std::size_t kWords = 4;  // of an entry
  // Key, segment and page, then pages, scope, exactness and time of touch; all zero when empty.
  using Slot = std::array<std::atomic<std::uint64_t>, kWords>;
  using SlotValue = std::array<std::uint64_t, kWords>;
  struct alignas(64) Shard {
    std::atomic<std::uint32_t> version = 0;  // odd while a writer is at work
    std::atomic<std::uint32_t> capacity = 0;
    std::atomic<Slot*> slots = nullptr;
    mutable Mutex mutex;
    std::size_t used GALLEY_GUARDED_BY(mutex) = 0;
  };
  class Reader;

  [[nodiscard]] std::uint64_t hash(std::uint16_t space, const BlockKey& key) const;
  [[nodiscard]] Shard& shard_of(std::uint64_t hash) const { return shards_[hash % kShards]; }
  static SlotValue pack(const BlockKey& key, const IndexEntry& entry);
  static IndexEntry unpack(const SlotValue& value);
  [[nodiscard]] bool is(const SlotValue& value, std::uint16_t space, const BlockKey& key) const;
  [[nodiscard]] std::optional<IndexEntry> find_hashed(std::uint64_t hash,
                                                      std::uint16_t space,
                                                      const BlockKey& key,
                                                      std::uint32_t touch_s) const;
  void grow(Shard& shard) GALLEY_REQUIRES(shard.mutex);
  void remove_at(Shard& shard, std::size_t slot) GALLEY_REQUIRES(shard.mutex);
  void wait_for_readers();

  const ScopeTable& scopes_;
  std::uint64_t seed_;
  std::unique_ptr<Shard[]> shards_;
  // Readers under way, by the parity of the epoch they began in: memory that a writer took out of
  // use is freed when those of its epoch have left.
  mutable std::atomic<std::uint64_t> epoch_ = 0;
  struct alignas(64) Count {
    std::atomic<std::int64_t> readers = 0;
  };
  mutable std::array<Count, 2> counts_;
  Mutex epoch_mutex_;
};

}  // namespace galley::cache
