#include "cache/prefix_cache.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <map>
#include <vector>

#include "base/random.h"

namespace galley::cache {
namespace {

BlockKey key(std::uint64_t n) {
  BlockKey out;
  std::memcpy(out.bytes.data(), &n, sizeof(n));
  return out;
}

TEST(PrefixCache, GivesEveryBlockOnceAndNoMore) {
  PrefixCache cache(3);
  std::vector<BlockId> given;
  while (const auto block = cache.allocate()) {
    given.push_back(*block);
  }
  std::ranges::sort(given);
  EXPECT_EQ(given, (std::vector{BlockId(0), BlockId(1), BlockId(2)}));
  EXPECT_EQ(cache.available(), 0U);
  cache.release(given[1]);
  EXPECT_EQ(cache.allocate(), BlockId(1));
}

TEST(PrefixCache, WithdrawnBlocksAreNeverGivenAgain) {
  PrefixCache cache(4);
  const BlockId held = *cache.allocate();
  const BlockId useful = *cache.allocate();
  const std::vector<BlockId> lost{held, BlockId(3)};
  cache.withdraw(lost);
  cache.withdraw(lost);
  EXPECT_EQ(cache.blocks(), 2U);
  EXPECT_EQ(cache.available(), 1U);
  EXPECT_TRUE(cache.consistent());
  cache.release(held);
  EXPECT_EQ(cache.available(), 1U);
  cache.release(useful);
  EXPECT_EQ(cache.available(), 2U);
  EXPECT_TRUE(cache.consistent());
  while (const auto block = cache.allocate()) {
    EXPECT_EQ(std::ranges::count(lost, *block), 0);
  }
}

TEST(PrefixCache, MatchesTheLongestPrefixAndHoldsIt) {
  PrefixCache cache(4);
  const std::vector<BlockKey> keys{key(1), key(2), key(3)};
  std::vector<BlockId> chain;
  for (int i = 0; i < 3; ++i) {
    chain.push_back(*cache.allocate());
  }
  cache.publish(chain[0], keys[0]);
  cache.publish(chain[2], keys[2]);  // behind a gap
  EXPECT_EQ(cache.match(keys), (std::vector{chain[0]}));
  cache.publish(chain[1], keys[1]);
  EXPECT_EQ(cache.match(keys), chain);
  for (const BlockId block : chain) {
    cache.release(block);
    cache.release(block);
  }
  cache.release(chain[0]);
  EXPECT_EQ(cache.cached(), 3U);
  EXPECT_EQ(cache.available(), 4U);
}

TEST(PrefixCache, EvictsWhatWasReleasedFirst) {
  PrefixCache cache(2);
  const BlockId a = *cache.allocate();
  const BlockId b = *cache.allocate();
  cache.publish(a, key(1));
  cache.publish(b, key(2));
  cache.release(b);  // the end of the chain first
  cache.release(a);
  EXPECT_EQ(cache.allocate(), b);
  EXPECT_FALSE(cache.acquire(key(2)));
  EXPECT_EQ(cache.acquire(key(1)), a);
  EXPECT_EQ(cache.evictions(), 1);
  EXPECT_FALSE(cache.allocate());
}

TEST(PrefixCache, AnEqualKeyKeepsItsFirstBlock) {
  PrefixCache cache(2);
  const BlockId a = *cache.allocate();
  const BlockId b = *cache.allocate();
  EXPECT_TRUE(cache.publish(a, key(1)));
  EXPECT_FALSE(cache.publish(b, key(1)));
  EXPECT_FALSE(cache.publish(a, key(1)));
  cache.release(b);
  EXPECT_EQ(cache.cached(), 0U);  // b has no key: free at once
  EXPECT_EQ(cache.acquire(key(1)), a);
}

// Against a plain model of who holds what.
TEST(PrefixCache, RandomWalkKeepsItsAccounts) {
  constexpr std::size_t kBlocks = 16;
  Random random(Seed(1), 0);
  PrefixCache cache(kBlocks);
  std::vector<BlockId> held;          // one entry a user
  std::map<BlockId, BlockKey> named;  // held blocks whose key the cache knows
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t what = random.next_below(4);
    if (what == 0) {
      if (const auto block = cache.allocate()) {
        EXPECT_EQ(std::ranges::count(held, *block), 0);
        held.push_back(*block);
      } else {
        std::vector<BlockId> all = held;
        std::ranges::sort(all);
        all.erase(std::unique(all.begin(), all.end()), all.end());
        EXPECT_EQ(all.size(), kBlocks);
      }
    } else if (what == 1 && !held.empty()) {
      const BlockId block = held[random.next_below(held.size())];
      const BlockKey k = key(random.next_below(40));
      if (!named.contains(block) && cache.publish(block, k)) {
        named[block] = k;
      }
    } else if (what == 2) {
      const BlockKey k = key(random.next_below(40));
      if (const auto block = cache.acquire(k)) {
        if (named.contains(*block)) {
          EXPECT_EQ(named[*block], k);
        }
        named[*block] = k;
        held.push_back(*block);
      } else {
        EXPECT_TRUE(std::ranges::none_of(named, [&](const auto& one) { return one.second == k; }));
      }
    } else if (!held.empty()) {
      const std::size_t i = random.next_below(held.size());
      const BlockId block = held[i];
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      cache.release(block);
      if (std::ranges::count(held, block) == 0) {
        named.erase(block);
      }
    }
    ASSERT_TRUE(cache.consistent()) << "step " << step;
  }
  EXPECT_GT(cache.evictions(), 100);
}

}  // namespace
}  // namespace galley::cache
