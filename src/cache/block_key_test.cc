#include "cache/block_key.h"

#include <gtest/gtest.h>
#include <numeric>
#include <set>
#include <vector>

namespace galley::cache {
namespace {

std::vector<TokenId> tokens_from(TokenId first) {
  std::vector<TokenId> tokens(kBlockTokens);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Computed with Python's hashlib from the byte layout in block_key.cc: keys are on disk and shared,
// so they never change.
TEST(BlockKey, IsThePublishedHash) {
  const BlockKey root = root_key({.layout = "plan", .weights = "w", .salt = ""});
  EXPECT_EQ(to_string(root), "28ae68cb7ad75476b25be03f03ab840d");
  EXPECT_EQ(to_string(next_key(root, tokens_from(0))), "7301c59f36cc2c8a2152340bb42d41c4");
}

TEST(BlockKey, NoFieldStandsInForAnother) {
  std::set<BlockKey> keys;
  for (const KeyScope& scope :
       {KeyScope{"a", "b", "c"}, KeyScope{"ab", "", "c"}, KeyScope{"", "ab", "c"},
        KeyScope{"a", "c", "b"}, KeyScope{"a", "b", ""}, KeyScope{"a", "", "b"}, KeyScope{}}) {
    EXPECT_TRUE(keys.insert(root_key(scope)).second);
  }
}

TEST(BlockKey, DependsOnParentTokensAndImages) {
  const BlockKey root = root_key({.layout = "plan"});
  const BlockImage image{.hash = {std::byte{1}}, .first_token = 3, .tokens = 5};
  BlockImage later = image;
  later.index = 5;
  BlockImage other = image;
  other.hash = {std::byte{2}};
  std::vector<TokenId> changed = tokens_from(0);
  changed.back() += 1;
  const std::set<BlockKey> keys{
      root,
      next_key(root, tokens_from(0)),
      next_key(root, changed),
      next_key(next_key(root, tokens_from(0)), tokens_from(0)),
      next_key(root, tokens_from(0), {{image}}),
      next_key(root, tokens_from(0), {{later}}),
      next_key(root, tokens_from(0), {{other}}),
  };
  EXPECT_EQ(keys.size(), 7U);
}

}  // namespace
}  // namespace galley::cache
