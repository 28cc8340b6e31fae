// Goal: a miss is told its true reason, and what is remembered stays bounded. Method: chains of
// blocks that are published and evicted by hand.
#include "cache/block_history.h"

#include <algorithm>
#include <gtest/gtest.h>
#include <utility>
#include <vector>

#include "base/units.h"

namespace galley::cache {
namespace {

// A block of tokens `first`, `first` + 1, ... behind `parent`.
struct Block {
  Block(const BlockKey& parent_key, std::uint64_t parent_content, TokenId first)
      : parent(parent_key) {
    for (TokenId i = 0; i < kBlockTokens; ++i) {
      tokens.push_back(first + i);
    }
    content = content_of(parent_content, tokens);
    key = next_key(parent, tokens);
  }
  [[nodiscard]] BlockHistory::Entry entry() const {
    return {.key = key, .parent = parent, .content = content, .tokens = tokens};
  }
  BlockKey parent;
  BlockKey key;
  std::uint64_t content = 0;
  std::vector<TokenId> tokens;
};

TEST(BlockHistory, TellsWhy) {
  BlockHistory history;
  const BlockKey root = root_key({.layout = "", .weights = "", .salt = "a"});
  const Block first(root, 0, 10);
  const Block second(first.key, first.content, 500);
  EXPECT_EQ(history.explain(first.entry()).miss, Miss::kNotStored);
  history.published(first.entry());
  EXPECT_EQ(history.explain(second.entry()).miss, Miss::kNotStored);
  history.published(second.entry());

  Block other = second;
  other.tokens[77] = 1;
  other.content = content_of(first.content, other.tokens);
  other.key = next_key(first.key, other.tokens);
  EXPECT_EQ(history.explain(other.entry()).miss, Miss::kDifferent);
  EXPECT_EQ(history.explain(other.entry()).tokens, 77U);
  // Nothing in common is no difference but something new.
  EXPECT_EQ(history.explain(Block(first.key, first.content, 9000).entry()).miss, Miss::kNotStored);

  // The same text under another root.
  const BlockKey foreign = root_key({.layout = "", .weights = "", .salt = "b"});
  const BlockHistory::Reason there = history.explain(Block(foreign, 0, 10).entry());
  EXPECT_EQ(there.miss, Miss::kNotStored);
  EXPECT_TRUE(there.other_scope);
  EXPECT_FALSE(history.explain(other.entry()).other_scope);

  history.evicted(second.key);
  EXPECT_EQ(history.explain(second.entry()).miss, Miss::kEvicted);
  EXPECT_EQ(history.explain(other.entry()).miss, Miss::kNotStored);
  history.published(second.entry());
  EXPECT_EQ(history.known(), 2U);
  history.evicted(second.key);
  history.evicted(first.key);
  EXPECT_EQ(history.known(), 0U);
  EXPECT_EQ(history.explain(first.entry()).miss, Miss::kEvicted);
}

TEST(BlockHistory, TheNewestOfWhatGoesOnIsCompared) {
  BlockHistory history;
  const BlockKey root = root_key({});
  const Block old(root, 0, 10);
  const Block young(root, 0, 300);
  history.published(old.entry());
  history.published(young.entry());
  Block wanted = young;
  wanted.tokens.back() = 1;
  wanted.key = next_key(root, wanted.tokens);
  wanted.content = content_of(0, wanted.tokens);
  EXPECT_EQ(history.explain(wanted.entry()).tokens, kBlockTokens - 1U);
  // The older one's end leaves it, its own does not.
  history.evicted(old.key);
  EXPECT_EQ(history.explain(wanted.entry()).miss, Miss::kDifferent);
  history.evicted(young.key);
  EXPECT_EQ(history.explain(wanted.entry()).miss, Miss::kNotStored);
}

TEST(BlockHistory, WhatIsOlderIsComparedOnceTheNewestIsGone) {
  BlockHistory history;
  const BlockKey root = root_key({});
  const Block old(root, 0, 10);
  const Block young(root, 0, 300);
  history.published(old.entry());
  history.published(young.entry());
  Block wanted = old;
  wanted.tokens[5] = 1;
  wanted.key = next_key(root, wanted.tokens);
  wanted.content = content_of(0, wanted.tokens);
  history.evicted(young.key);
  EXPECT_EQ(history.explain(wanted.entry()).miss, Miss::kDifferent);
  EXPECT_EQ(history.explain(wanted.entry()).tokens, 5U);
}

// Or whoever may ask could read what others wrote, a token a guess.
TEST(BlockHistory, WhatOthersStoreChangesNoClientsReason) {
  const BlockKey asking = root_key({.layout = "", .weights = "", .salt = "a"});
  const BlockKey victim = root_key({.layout = "", .weights = "", .salt = "b"});
  const auto block = [](const BlockKey& root, TokenId last) {
    Block out(root, 0, 1);
    std::ranges::fill(out.tokens, TokenId{1});
    out.tokens.back() = last;
    out.content = content_of(0, out.tokens);
    out.key = next_key(root, out.tokens);
    return out;
  };
  BlockHistory alone;
  alone.published(block(asking, 5).entry());
  BlockHistory together;
  together.published(block(asking, 5).entry());
  together.published(block(victim, 9).entry());
  for (const TokenId guess : {TokenId{9}, TokenId{8}}) {
    const BlockHistory::Reason reason = together.explain(block(asking, guess).entry());
    EXPECT_EQ(reason.miss, alone.explain(block(asking, guess).entry()).miss);
    EXPECT_EQ(reason.miss, Miss::kDifferent);
    EXPECT_EQ(reason.tokens, 127U);
    EXPECT_EQ(reason.other_scope, guess == 9);
  }
}

TEST(BlockHistory, RemembersABoundedNumberOfBlocksThatAreGone) {
  constexpr std::size_t kEvicted = 8;
  BlockHistory history(kEvicted);
  const BlockKey root = root_key({});
  std::vector<Block> gone;
  std::size_t told = 0;
  for (TokenId i = 0; i < 100; ++i) {
    gone.emplace_back(root, 0, 200 * i);
    history.published(gone.back().entry());
    history.evicted(gone.back().key);
    EXPECT_EQ(history.explain(gone.back().entry()).miss, Miss::kEvicted);  // the newest always
  }
  for (const Block& one : gone) {
    told += history.explain(one.entry()).miss == Miss::kEvicted ? 1U : 0U;
  }
  EXPECT_GT(told, 1U);
  EXPECT_LE(told, kEvicted);
  EXPECT_EQ(history.known(), 0U);
}

}  // namespace
}  // namespace galley::cache
