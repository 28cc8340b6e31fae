// Goal: a miss is told its true reason, and what is remembered stays bounded. Method: chains of
// blocks that are published and evicted by hand.
#include "cache/block_history.h"

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
  EXPECT_EQ(history.explain(Block(foreign, 0, 10).entry()).miss, Miss::kOtherScope);

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

}  // namespace
}  // namespace galley::cache
