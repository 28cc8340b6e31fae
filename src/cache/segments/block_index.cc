#include "cache/segments/block_index.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <sys/mman.h>
#include <thread>

#include "base/check.h"

namespace galley::cache {
namespace {

constexpr std::size_t kSlotsMin = 16;
constexpr std::size_t kHugePage = std::size_t{2} << 20U;
// Home slots fetched from memory ahead of the lookup that needs them.
constexpr std::size_t kAhead = 16;

// Slots are addressed by the upper half of the hash, shards by its lowest bits.
std::size_t home_of(std::uint64_t hash, std::size_t capacity) {
  return static_cast<std::size_t>(((hash >> 32U) * capacity) >> 32U);
}

std::uint64_t multiply_fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
}

constexpr std::uint64_t kPagesMask = 0xffff;
constexpr unsigned kScopeShift = 16;
constexpr std::uint64_t kScopeMask = 0x7fff;
constexpr unsigned kExactShift = 31;
constexpr unsigned kTouchedShift = 32;

}  // namespace

// While it lives, no slots that were in use are freed.
class BlockIndex::Reader {
 public:
  explicit Reader(const BlockIndex& index) {
    for (;;) {
      const std::uint64_t epoch = index.epoch_.load();
      count_ = &index.counts_[epoch % 2].readers;
      count_->fetch_add(1);
      if (index.epoch_.load() == epoch) {
        return;
      }
      count_->fetch_sub(1);  // a writer may have counted before us
    }
  }
  ~Reader() { count_->fetch_sub(1, std::memory_order_release); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

 private:
  std::atomic<std::int64_t>* count_;
};

BlockIndex::BlockIndex(const ScopeTable& scopes, Seed seed)
    : scopes_(scopes),
      seed_(Random(seed, 0).next_u64() | 1U),
      shards_(std::make_unique<Shard[]>(kShards)) {}

BlockIndex::~BlockIndex() {
  for (std::size_t i = 0; i < kShards; ++i) {
    std::free(shards_[i].slots.load());  // NOLINT(cppcoreguidelines-no-malloc)
  }
}

std::uint64_t BlockIndex::hash(std::uint16_t space, const BlockKey& key) const {
  std::array<std::uint64_t, 2> words{};
  std::memcpy(words.data(), key.bytes.data(), sizeof(words));
  const std::uint64_t first = multiply_fold(words[0] ^ seed_, 0x9e3779b97f4a7c15U ^ space);
  return multiply_fold(first ^ words[1], seed_ ^ 0xd1b54a32d192ed03U);
}

BlockIndex::SlotValue BlockIndex::pack(const BlockKey& key, const IndexEntry& entry) {
  GALLEY_ASSERT(entry.place.pages > 0);
  SlotValue out{};
  std::memcpy(out.data(), key.bytes.data(), key.bytes.size());
  out[2] = entry.place.segment | (std::uint64_t{entry.place.page} << 32U);
  out[3] = entry.place.pages | (std::uint64_t{entry.scope} << kScopeShift) |
           (std::uint64_t{entry.exact} << kExactShift) |
           (std::uint64_t{entry.touched_s} << kTouchedShift);
  return out;
}

IndexEntry BlockIndex::unpack(const SlotValue& value) {
  return {.place = {.segment = static_cast<std::uint32_t>(value[2]),
                    .page = static_cast<std::uint32_t>(value[2] >> 32U),
                    .pages = static_cast<std::uint16_t>(value[3] & kPagesMask)},
          .scope = static_cast<std::uint16_t>((value[3] >> kScopeShift) & kScopeMask),
          .exact = ((value[3] >> kExactShift) & 1U) != 0,
          .touched_s = static_cast<std::uint32_t>(value[3] >> kTouchedShift)};
}

bool BlockIndex::is(const SlotValue& value, std::uint16_t space, const BlockKey& key) const {
  return std::memcmp(value.data(), key.bytes.data(), key.bytes.size()) == 0 &&
         scopes_.at((value[3] >> kScopeShift) & kScopeMask).space == space;
}

std::optional<IndexEntry> BlockIndex::find_hashed(std::uint64_t hash,
                                                  std::uint16_t space,
                                                  const BlockKey& key,
                                                  std::uint32_t touch_s) const {
  const Shard& shard = shard_of(hash);
  for (;;) {
    const std::uint32_t before = shard.version.load(std::memory_order_acquire);
    if (before % 2 != 0) {
      continue;
    }
    Slot* const slots = shard.slots.load(std::memory_order_acquire);
    const std::size_t capacity = shard.capacity.load(std::memory_order_acquire);
    std::optional<IndexEntry> found;
    // A pair of the wrong capacity would leave the memory; the version tells before it is used.
    if (shard.version.load(std::memory_order_acquire) != before) {
      continue;
    }
    if (capacity > 0) {
      std::size_t at = home_of(hash, capacity);
      for (std::size_t probed = 0; probed < capacity; ++probed) {
        Slot& slot = slots[at];
        SlotValue value{};
        for (std::size_t i = 0; i < kWords; ++i) {
          value[i] = slot[i].load(std::memory_order_acquire);
        }
        if ((value[3] & kPagesMask) == 0) {
          break;
        }
        if (is(value, space, key)) {
          found = unpack(value);
          if (touch_s > found->touched_s) {  // at most once a second: it writes to shared memory
            // If the slot has changed since, this fails, or touches another one: no harm.
            const std::uint64_t touched =
                (value[3] & 0xffff'ffffU) | (std::uint64_t{touch_s} << kTouchedShift);
            slot[3].compare_exchange_strong(value[3], touched, std::memory_order_relaxed);
          }
          break;
        }
        at = at + 1 == capacity ? 0 : at + 1;
      }
    }
    if (shard.version.load(std::memory_order_acquire) == before) {
      return found;
    }
  }
}

std::optional<IndexEntry> BlockIndex::find(std::uint16_t space,
                                           const BlockKey& key,
                                           std::uint32_t touch_s) const {
  const Reader reader(*this);
  return find_hashed(hash(space, key), space, key, touch_s);
}

void BlockIndex::match(std::uint16_t space,
                       std::span<const BlockKey> keys,
                       std::uint32_t now_s,
                       std::vector<IndexEntry>& out) const {
  const Reader reader(*this);
  std::array<std::uint64_t, kAhead> hashes{};
  const auto fetch = [&](std::size_t i) {
    const std::uint64_t h = hash(space, keys[i]);
    hashes[i % kAhead] = h;
    const Shard& shard = shard_of(h);
    const std::size_t capacity = shard.capacity.load(std::memory_order_relaxed);
    if (const Slot* const slots = shard.slots.load(std::memory_order_relaxed); capacity > 0) {
      __builtin_prefetch(slots + home_of(h, capacity));  // of old memory: no harm
    }
  };
  for (std::size_t i = 0; i < std::min(kAhead, keys.size()); ++i) {
    fetch(i);
  }
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto found = find_hashed(hashes[i % kAhead], space, keys[i], now_s);
    if (!found) {
      return;
    }
    out.push_back(*found);
    if (i + kAhead < keys.size()) {
      fetch(i + kAhead);
    }
  }
}

namespace {

// All zero: empty.
template <class Slot>
Slot* new_slots(std::size_t count) {
  const std::size_t bytes = count * sizeof(Slot);
  const bool huge = bytes >= 2 * kHugePage;
  void* memory = nullptr;
  if (::posix_memalign(&memory, huge ? kHugePage : 64, bytes) != 0) {
    throw std::bad_alloc();
  }
  if (huge) {  // one miss of the address cache a lookup less; advice
    ::madvise(memory, bytes, MADV_HUGEPAGE);
  }
  std::memset(memory, 0, bytes);
  return static_cast<Slot*>(memory);
}

}  // namespace

void BlockIndex::wait_for_readers() {
  const MutexLock lock(epoch_mutex_);
  const std::uint64_t epoch = epoch_.fetch_add(1);
  while (counts_[epoch % 2].readers.load() != 0) {
    std::this_thread::yield();
  }
}

void BlockIndex::grow(Shard& shard) {
  const std::size_t old_capacity = shard.capacity.load(std::memory_order_relaxed);
  const std::size_t capacity = std::max(
      kSlotsMin, static_cast<std::size_t>(static_cast<double>(old_capacity) * kGrowth) + 1);
  Slot* const old = shard.slots.load(std::memory_order_relaxed);
  Slot* const grown = new_slots<Slot>(capacity);
  for (std::size_t i = 0; i < old_capacity; ++i) {
    SlotValue value{};
    for (std::size_t word = 0; word < kWords; ++word) {
      value[word] = old[i][word].load(std::memory_order_relaxed);
    }
    if ((value[3] & kPagesMask) == 0) {
      continue;
    }
    BlockKey key;
    std::memcpy(key.bytes.data(), value.data(), key.bytes.size());
    const std::uint16_t space = scopes_.at((value[3] >> kScopeShift) & kScopeMask).space;
    std::size_t at = home_of(hash(space, key), capacity);
    while ((grown[at][3].load(std::memory_order_relaxed) & kPagesMask) != 0) {
      at = at + 1 == capacity ? 0 : at + 1;
    }
    for (std::size_t word = 0; word < kWords; ++word) {
      grown[at][word].store(value[word], std::memory_order_relaxed);
    }
  }
  // Readers use the old slots until here. A touch between is lost: it is a hint.
  const std::uint32_t version = shard.version.load(std::memory_order_relaxed);
  shard.version.store(version + 1, std::memory_order_release);
  shard.slots.store(grown, std::memory_order_release);
  shard.capacity.store(static_cast<std::uint32_t>(capacity), std::memory_order_release);
  shard.version.store(version + 2, std::memory_order_release);
  if (old != nullptr) {
    wait_for_readers();
    std::free(old);  // NOLINT(cppcoreguidelines-no-malloc)
  }
}

bool BlockIndex::insert(std::uint16_t space,
                        const BlockKey& key,
                        const IndexEntry& entry,
                        const std::function<bool(const IndexEntry&)>& replaces) {
  const std::uint64_t h = hash(space, key);
  Shard& shard = shard_of(h);
  const MutexLock lock(shard.mutex);
  if (static_cast<double>(shard.used + 1) >
      kLoadMax * static_cast<double>(shard.capacity.load(std::memory_order_relaxed))) {
    grow(shard);
  }
  const std::size_t capacity = shard.capacity.load(std::memory_order_relaxed);
  Slot* const slots = shard.slots.load(std::memory_order_relaxed);
  const SlotValue packed = pack(key, entry);
  std::size_t at = home_of(h, capacity);
  for (;;) {
    SlotValue value{};
    for (std::size_t word = 0; word < kWords; ++word) {
      value[word] = slots[at][word].load(std::memory_order_relaxed);
    }
    const bool empty = (value[3] & kPagesMask) == 0;
    if (!empty && !is(value, space, key)) {
      at = at + 1 == capacity ? 0 : at + 1;
      continue;
    }
    if (!empty && !replaces(unpack(value))) {
      return false;
    }
    shard.used += empty ? 1 : 0;
    break;
  }
  const std::uint32_t version = shard.version.load(std::memory_order_relaxed);
  shard.version.store(version + 1, std::memory_order_relaxed);
  for (std::size_t word = 0; word < kWords; ++word) {
    slots[at][word].store(packed[word], std::memory_order_release);
  }
  shard.version.store(version + 2, std::memory_order_release);
  return true;
}

// Later entries of the run move up, so that no lookup meets a gap before its entry.
void BlockIndex::remove_at(Shard& shard, std::size_t slot) {
  const std::size_t capacity = shard.capacity.load(std::memory_order_relaxed);
  Slot* const slots = shard.slots.load(std::memory_order_relaxed);
  const std::uint32_t version = shard.version.load(std::memory_order_relaxed);
  shard.version.store(version + 1, std::memory_order_relaxed);
  std::size_t gap = slot;
  std::size_t at = slot;
  for (;;) {
    at = at + 1 == capacity ? 0 : at + 1;
    SlotValue value{};
    for (std::size_t word = 0; word < kWords; ++word) {
      value[word] = slots[at][word].load(std::memory_order_relaxed);
    }
    if ((value[3] & kPagesMask) == 0) {
      break;
    }
    BlockKey key;
    std::memcpy(key.bytes.data(), value.data(), key.bytes.size());
    const std::uint16_t space = scopes_.at((value[3] >> kScopeShift) & kScopeMask).space;
    const std::size_t home = home_of(hash(space, key), capacity);
    // May it stand in the gap: is its home at or before the gap, going around?
    const std::size_t from_home = (at + capacity - home) % capacity;
    const std::size_t from_gap = (at + capacity - gap) % capacity;
    if (from_home >= from_gap) {
      for (std::size_t word = 0; word < kWords; ++word) {
        slots[gap][word].store(value[word], std::memory_order_release);
      }
      gap = at;
    }
  }
  for (std::size_t word = 0; word < kWords; ++word) {
    slots[gap][word].store(0, std::memory_order_release);
  }
  shard.version.store(version + 2, std::memory_order_release);
  --shard.used;
}

bool BlockIndex::erase(std::uint16_t space, const BlockKey& key, const BlockPlace& place) {
  const std::uint64_t h = hash(space, key);
  Shard& shard = shard_of(h);
  const MutexLock lock(shard.mutex);
  const std::size_t capacity = shard.capacity.load(std::memory_order_relaxed);
  Slot* const slots = shard.slots.load(std::memory_order_relaxed);
  if (capacity == 0) {
    return false;
  }
  for (std::size_t at = home_of(h, capacity);; at = at + 1 == capacity ? 0 : at + 1) {
    SlotValue value{};
    for (std::size_t word = 0; word < kWords; ++word) {
      value[word] = slots[at][word].load(std::memory_order_relaxed);
    }
    if ((value[3] & kPagesMask) == 0) {
      return false;
    }
    if (is(value, space, key)) {
      if (unpack(value).place != place) {
        return false;
      }
      remove_at(shard, at);
      return true;
    }
  }
}

std::size_t BlockIndex::erase_if(const std::function<bool(const IndexEntry&)>& gone) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < kShards; ++i) {
    Shard& shard = shards_[i];
    const MutexLock lock(shard.mutex);
    const std::size_t capacity = shard.capacity.load(std::memory_order_relaxed);
    Slot* const slots = shard.slots.load(std::memory_order_relaxed);
    // A slot is looked at again after a removal, as another entry may have moved up into it. What
    // moves around the end of the slots was looked at before, or will be.
    for (std::size_t at = 0; at < capacity;) {
      SlotValue value{};
      for (std::size_t word = 0; word < kWords; ++word) {
        value[word] = slots[at][word].load(std::memory_order_relaxed);
      }
      if ((value[3] & kPagesMask) != 0 && gone(unpack(value))) {
        remove_at(shard, at);
        ++count;
      } else {
        ++at;
      }
    }
  }
  return count;
}

std::size_t BlockIndex::size() const {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < kShards; ++i) {
    const MutexLock lock(shards_[i].mutex);
    sum += shards_[i].used;
  }
  return sum;
}

std::size_t BlockIndex::memory_bytes() const {
  std::size_t sum = sizeof(*this) + kShards * sizeof(Shard);
  for (std::size_t i = 0; i < kShards; ++i) {
    sum += shards_[i].capacity.load(std::memory_order_relaxed) * sizeof(Slot);
  }
  return sum;
}

}  // namespace galley::cache
