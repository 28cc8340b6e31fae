// Goal: the longest prefix is found, and nothing else. Method: random sets of strings, compared
// with a search through a map.
#include "recipe/byte_trie.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>

namespace galley::recipe {
namespace {

using Strings = std::map<std::string, std::uint32_t, std::less<>>;

ByteTrie trie_of(const Strings& strings) {
  std::vector<std::pair<std::string_view, std::uint32_t>> entries(strings.begin(), strings.end());
  Result<ByteTrie> trie = ByteTrie::build(entries);
  EXPECT_TRUE(trie);
  return trie ? *std::move(trie) : ByteTrie();
}

void expect_same(const ByteTrie& trie, const Strings& strings, std::string_view text) {
  ByteTrie::Match expected;
  for (std::size_t bytes = 1; bytes <= text.size(); ++bytes) {
    if (const auto found = strings.find(text.substr(0, bytes)); found != strings.end()) {
      expected = {found->second, bytes};
    }
  }
  const ByteTrie::Match match = trie.longest_prefix(text);
  ASSERT_EQ(match.value, expected.value) << text;
  ASSERT_EQ(match.bytes, expected.bytes) << text;
}

TEST(ByteTrie, AnEmptyOneMatchesNothing) {
  for (const ByteTrie& trie : {ByteTrie(), trie_of({})}) {
    EXPECT_EQ(trie.longest_prefix("abc").value, ByteTrie::kNone);
    EXPECT_EQ(trie.longest_prefix("").value, ByteTrie::kNone);
  }
}

TEST(ByteTrie, RandomSets) {
  std::mt19937 random(2);
  for (int round = 0; round != 60; ++round) {
    const unsigned letters = round % 3 == 0 ? 2 : round % 3 == 1 ? 20 : 256;
    const auto draw = [&](std::size_t bytes_max) {
      std::string text(random() % bytes_max + 1, '\0');
      for (char& c : text) {
        c = static_cast<char>(random() % letters);
      }
      return text;
    };
    Strings strings;
    for (auto left = random() % 400; left != 0; --left) {
      strings.emplace(draw(8), random() % 1'000);
    }
    const ByteTrie trie = trie_of(strings);
    for (const auto& [string, value] : strings) {
      expect_same(trie, strings, string);
      expect_same(trie, strings, string + draw(3));
    }
    for (int i = 0; i != 200; ++i) {
      expect_same(trie, strings, draw(10));
    }
  }
}

TEST(ByteTrie, AllPairsOfBytesAndALongChain) {
  Strings strings;
  for (unsigned pair = 0; pair != 65'536; ++pair) {
    strings.emplace(std::string{static_cast<char>(pair >> 8U), static_cast<char>(pair & 0xFFU)},
                    pair);
  }
  strings.emplace(std::string(1'000, 'x'), 70'000);
  const ByteTrie trie = trie_of(strings);
  for (const auto& [string, value] : strings) {
    ASSERT_EQ(trie.longest_prefix(string).value, value);
  }
  EXPECT_EQ(trie.longest_prefix(std::string(999, 'x')).bytes, 2U);
}

}  // namespace
}  // namespace galley::recipe
