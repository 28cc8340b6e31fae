// Goal: generated ids have the form that clients know, repeat from a seed, and differ.
// Method: many ids of one source, and of sources with equal and other seeds.

#include "recipe/random_ids.h"

#include <algorithm>
#include <cctype>
#include <gtest/gtest.h>
#include <set>

namespace galley::recipe {
namespace {

TEST(RandomIds, AreTwentyLettersAndDigitsAndNeverRepeat) {
  RandomIds ids(Seed(1));
  std::set<std::string> seen;
  std::set<char> bytes;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = ids.next_id();
    EXPECT_EQ(id.size(), 20U);
    EXPECT_TRUE(seen.insert(id).second) << id;
    bytes.insert(id.begin(), id.end());
  }
  EXPECT_EQ(bytes.size(), 62U);  // every letter and digit, nothing else
  EXPECT_TRUE(std::ranges::all_of(bytes, [](unsigned char c) { return std::isalnum(c) != 0; }));
}

TEST(RandomIds, RepeatFromTheirSeed) {
  RandomIds first(Seed(7));
  RandomIds again(Seed(7));
  RandomIds other(Seed(8));
  const std::string id = first.next_id();
  EXPECT_EQ(again.next_id(), id);
  EXPECT_NE(other.next_id(), id);
}

}  // namespace
}  // namespace galley::recipe
