#include "cache/segments/block_index.h"

#include <cstring>
#include <gtest/gtest.h>
#include <map>

namespace galley::cache {
namespace {

BlockKey key(std::uint64_t n) {
  BlockKey out;
  std::memcpy(out.bytes.data(), &n, sizeof(n));
  return out;
}

IndexEntry entry(std::uint32_t segment, std::uint32_t page, std::uint16_t scope) {
  return {.place = {.segment = segment, .page = page, .pages = 28}, .scope = scope, .exact = true};
}

const auto kAlways = [](const IndexEntry&) { return true; };
const auto kNever = [](const IndexEntry&) { return false; };

class BlockIndexTest : public testing::Test {
 protected:
  ScopeTable scopes_;
  std::uint16_t a_ = *scopes_.number({.space = "a", .layout = 1});
  std::uint16_t b_ = *scopes_.number({.space = "b", .layout = 1});
  std::uint16_t space_a_ = *scopes_.space("a");
  std::uint16_t space_b_ = *scopes_.space("b");
  BlockIndex index_{scopes_, Seed(3)};
};

TEST_F(BlockIndexTest, NamespacesNeverMeet) {
  EXPECT_TRUE(index_.insert(space_a_, key(1), entry(4, 5, a_), kNever));
  EXPECT_FALSE(index_.find(space_b_, key(1)));
  EXPECT_TRUE(index_.insert(space_b_, key(1), entry(6, 7, b_), kNever));
  EXPECT_EQ(index_.find(space_a_, key(1))->place, (BlockPlace{4, 5, 28}));
  EXPECT_EQ(index_.find(space_b_, key(1))->place, (BlockPlace{6, 7, 28}));
  EXPECT_EQ(index_.size(), 2U);
}

TEST_F(BlockIndexTest, ReplacesOnlyWhereAsked) {
  EXPECT_TRUE(index_.insert(space_a_, key(1), entry(1, 1, a_), kNever));
  EXPECT_FALSE(index_.insert(space_a_, key(1), entry(2, 2, a_), kNever));
  EXPECT_EQ(index_.find(space_a_, key(1))->place.segment, 1U);
  EXPECT_TRUE(index_.insert(space_a_, key(1), entry(2, 2, a_), kAlways));
  EXPECT_EQ(index_.find(space_a_, key(1))->place.segment, 2U);
  EXPECT_EQ(index_.size(), 1U);
  EXPECT_FALSE(index_.erase(space_a_, key(1), {1, 1, 28})) << "it has moved";
  EXPECT_TRUE(index_.erase(space_a_, key(1), {2, 2, 28}));
  EXPECT_FALSE(index_.find(space_a_, key(1)));
}

TEST_F(BlockIndexTest, MatchesTheLongestPrefixAndTouchesIt) {
  std::vector<BlockKey> keys;
  for (std::uint64_t i = 0; i < 100; ++i) {
    keys.push_back(key(i));
    if (i != 60) {
      index_.insert(space_a_, keys.back(), entry(1, static_cast<std::uint32_t>(i), a_), kNever);
    }
  }
  std::vector<IndexEntry> found;
  index_.match(space_a_, keys, 1000, found);
  ASSERT_EQ(found.size(), 60U);
  EXPECT_EQ(found[59].place.page, 59U);
  EXPECT_EQ(index_.find(space_a_, keys[59])->touched_s, 1000U);
  EXPECT_EQ(index_.find(space_a_, keys[61])->touched_s, 0U);
  found.clear();
  index_.match(space_b_, keys, 1000, found);
  EXPECT_TRUE(found.empty());
}

// Against a plain map, with runs that go around the end of the slots and removals among them.
TEST_F(BlockIndexTest, AgreesWithAMap) {
  std::map<std::pair<std::uint16_t, std::uint64_t>, std::uint32_t> model;
  Random random(Seed(5), 1);
  for (std::uint32_t step = 0; step < 300'000; ++step) {
    const bool first = random.next_below(2) == 0;
    const std::uint16_t space = first ? space_a_ : space_b_;
    const std::uint64_t n = random.next_below(30'000);
    const auto id = std::pair(space, n);
    switch (random.next_below(4)) {
      case 0:
        if (model.contains(id)) {
          EXPECT_TRUE(index_.erase(space, key(n), {model[id], step % 7, 28}) ||
                      index_.find(space, key(n))->place.page != step % 7);
          if (!index_.find(space, key(n))) {
            model.erase(id);
          }
        }
        break;
      case 1: {
        const auto found = index_.find(space, key(n));
        ASSERT_EQ(found.has_value(), model.contains(id));
        if (found) {
          ASSERT_EQ(found->place.segment, model[id]);
        }
        break;
      }
      default:
        index_.insert(space, key(n), entry(step, step % 7, first ? a_ : b_), kAlways);
        model[id] = step;
    }
    if (step % 50'000 == 49'999) {
      const std::size_t gone =
          index_.erase_if([](const IndexEntry& it) { return it.place.segment % 3 == 0; });
      EXPECT_EQ(gone, std::erase_if(model, [](const auto& it) { return it.second % 3 == 0; }));
      ASSERT_EQ(index_.size(), model.size());
      for (const auto& [where, segment] : model) {
        ASSERT_EQ(index_.find(where.first, key(where.second))->place.segment, segment);
      }
    }
  }
}

TEST_F(BlockIndexTest, TakesAtMost48BytesAKey) {
  for (std::uint64_t i = 0; i < 400'000; ++i) {
    index_.insert(space_a_, key(i * 0x9e3779b97f4a7c15U), entry(1, 1, a_), kNever);
  }
  EXPECT_LE(static_cast<double>(index_.memory_bytes()) / 400'000, 48.0);
}

TEST(ScopeTable, GivesEveryScopeOneNumberAndStops) {
  ScopeTable table;
  for (std::size_t i = 0; i < ScopeTable::kScopesMax; ++i) {
    ASSERT_EQ(table.number({.space = "s", .layout = i}), i);
  }
  EXPECT_FALSE(table.number({.space = "s", .layout = ScopeTable::kScopesMax}));
  EXPECT_EQ(table.number({.space = "s", .layout = 7}), 7);
  EXPECT_EQ(table.spaces(), 1U);
  EXPECT_EQ(table.full(9).layout, 9U);
}

}  // namespace
}  // namespace galley::cache
