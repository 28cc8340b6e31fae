// Goal: lookups beside inserts, growth and removals see whole entries only. Method: threads on one
// index and one store; the tsan preset runs it.
#include <atomic>
#include <gtest/gtest.h>
#include <thread>

#include "cache/segments/block_index.h"
#include "cache/segments/store_for_test.h"

namespace galley::cache {
namespace {

TEST(BlockIndexThreads, ReadersSeeWholeEntries) {
  ScopeTable scopes;
  const std::uint16_t scope = *scopes.number({.space = "a"});
  BlockIndex index(scopes, Seed(1));
  constexpr std::uint64_t kKeys = 20'000;
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> wrong = 0;
  std::atomic<std::uint64_t> found = 0;
  const auto read = [&] {
    std::vector<BlockKey> keys(50);
    std::vector<IndexEntry> out;
    for (std::uint64_t at = 0; !stop; at = (at + 50) % kKeys) {
      for (std::uint64_t i = 0; i < keys.size(); ++i) {
        keys[i] = key_for_test(at + i);
      }
      out.clear();
      index.match(0, keys, static_cast<std::uint32_t>(at), out);
      for (std::size_t i = 0; i < out.size(); ++i) {
        // Of an entry, page and segment always belong together and to the key.
        wrong += out[i].place.page != at + i || out[i].place.segment % kKeys != at + i ? 1 : 0;
      }
      found += out.size();
    }
  };
  std::thread first(read);
  std::thread second(read);
  for (std::uint32_t round = 0; round < 6; ++round) {
    for (std::uint32_t n = 0; n < kKeys; ++n) {
      index.insert(0, key_for_test(n),
                   {.place = {.segment = n + round * static_cast<std::uint32_t>(kKeys),
                              .page = n,
                              .pages = 1},
                    .scope = scope},
                   [](const IndexEntry&) { return true; });
    }
    index.erase_if([&](const IndexEntry& it) { return it.place.page % 5 == round % 5; });
  }
  stop = true;
  first.join();
  second.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(found, 0U);
}

TEST(SegmentStoreThreads, ReadersAndWritersAtOnce) {
  VirtualDisk disk(Seed(1));
  const ManualClock clock(UnixTime(std::chrono::hours(500'000)));
  StoreOptions options{.segment_bytes = 200'000, .group_bytes = 30'000, .seed = Seed(2)};
  auto store = std::move(*SegmentStore::open(disk, clock, options));
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> wrong = 0;
  std::atomic<std::uint64_t> read_blocks = 0;
  const auto read = [&] {
    PageBuffer buffer;
    for (std::uint64_t n = 0; !stop; n = (n + 7) % 400) {
      const std::array keys{key_for_test(n)};
      const auto lease = store->match({.space = "tenant", .layout = 1, .keys = keys});
      if (lease->size() == 1) {
        const auto view = store->read(*lease, 0, buffer);
        wrong += !view || !same_parts(*view, BlockForTest(n)) ? 1 : 0;
        ++read_blocks;
      }
    }
  };
  const auto write = [&](std::uint64_t from) {
    for (std::uint64_t n = from; n < from + 200; ++n) {
      const BlockForTest one(n);
      wrong += store->put(one.block) ? 0 : 1;
    }
  };
  std::thread reader(read);
  std::thread first(write, 0);
  std::thread second(write, 200);
  for (int i = 0; i < 50; ++i) {
    wrong += store->commit() && store->maintain() ? 0 : 1;
  }
  first.join();
  second.join();
  wrong += store->commit() ? 0 : 1;
  stop = true;
  reader.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_EQ(store->stats().keys, 400U);
  EXPECT_GT(read_blocks, 0U);
}

}  // namespace
}  // namespace galley::cache
