// Goal: encoding equals byte pair merging. Method: random sets of merges over few letters, where
// merges compete for every border, compared with merging step by step as the definition says.
#include "recipe/bpe.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>

namespace galley::recipe {
namespace {

constexpr TokenId kTokenOffset = 1'000;  // ids need not be symbols

struct Model {
  std::vector<Bpe::Merge> merges;
  std::map<std::pair<Bpe::Symbol, Bpe::Symbol>, Bpe::Symbol> results;
};

// Each merge joins two symbols drawn at random, as long as that makes a new string.
Model random_model(std::mt19937& random, unsigned letters, std::size_t merge_count) {
  Model model;
  std::vector<std::pair<Bpe::Symbol, std::string>> usable;
  std::set<std::string> made;
  for (unsigned letter = 0; letter != letters; ++letter) {
    usable.emplace_back('a' + letter, std::string(1, static_cast<char>('a' + letter)));
  }
  for (std::size_t tries = 0; tries != merge_count * 4 && model.merges.size() != merge_count;
       ++tries) {
    const auto [left, left_text] = usable[random() % usable.size()];
    const auto [right, right_text] = usable[random() % usable.size()];
    const std::string text = left_text + right_text;
    if (text.size() > 20 || !made.insert(text).second) {
      continue;
    }
    const auto symbol = static_cast<Bpe::Symbol>(256 + model.merges.size());
    model.merges.push_back({left, right});
    model.results[{left, right}] = symbol;
    usable.emplace_back(symbol, text);
  }
  return model;
}

Bpe build(const Model& model) {
  std::vector<TokenId> tokens;
  for (TokenId symbol = 0; symbol != 256 + model.merges.size(); ++symbol) {
    tokens.push_back(symbol + kTokenOffset);
  }
  Result<Bpe> bpe = Bpe::build(model.merges, tokens);
  EXPECT_TRUE(bpe);
  return bpe ? *std::move(bpe) : Bpe();
}

// The definition: the earliest merge that is possible, at its leftmost place, until there is none.
std::vector<TokenId> merge_by_steps(const Model& model, std::string_view piece) {
  std::vector<Bpe::Symbol> symbols;
  for (const char c : piece) {
    symbols.push_back(static_cast<unsigned char>(c));
  }
  while (true) {
    std::size_t best_at = 0;
    Bpe::Symbol best = ~Bpe::Symbol{0};
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      const auto found = model.results.find({symbols[i], symbols[i + 1]});
      if (found != model.results.end() && found->second < best) {
        best = found->second;
        best_at = i;
      }
    }
    if (best == ~Bpe::Symbol{0}) {
      break;
    }
    symbols[best_at] = best;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
  }
  for (Bpe::Symbol& symbol : symbols) {
    symbol += kTokenOffset;
  }
  return symbols;
}

std::vector<TokenId> encode(const Bpe& bpe, std::string_view piece) {
  std::vector<TokenId> ids;
  bpe.encode(std::span(&piece, 1), ids);
  return ids;
}

TEST(Bpe, EqualsMergingStepByStep) {
  std::mt19937 random(3);
  for (int round = 0; round != 300; ++round) {
    const unsigned letters = 1 + random() % 4;
    const Model model = random_model(random, letters, 1 + random() % 60);
    const Bpe bpe = build(model);
    for (int i = 0; i != 60; ++i) {
      std::string piece(1 + random() % 40, 'a');
      for (char& c : piece) {
        c = static_cast<char>('a' + random() % letters);
      }
      ASSERT_EQ(encode(bpe, piece), merge_by_steps(model, piece)) << piece << " round " << round;
    }
  }
}

TEST(Bpe, EqualNeighboursMergeFromTheLeft) {
  Model model;
  model.merges = {{'a', 'a'}, {256, 'a'}};
  model.results = {{{'a', 'a'}, 256}, {{256, 'a'}, 257}};
  const Bpe bpe = build(model);
  for (std::size_t length = 1; length != 30; ++length) {
    const std::string piece(length, 'a');
    EXPECT_EQ(encode(bpe, piece), merge_by_steps(model, piece)) << length;
  }
}

TEST(Bpe, ASymbolThatItsOwnBytesDoNotReachIsNeverUsed) {
  // "bc" is merged first, so "ab" + "c" never meets.
  Model model;
  model.merges = {{'b', 'c'}, {'a', 'b'}, {257, 'c'}};
  model.results = {{{'b', 'c'}, 256}, {{'a', 'b'}, 257}, {{257, 'c'}, 258}};
  const std::vector<TokenId> expected = {'a' + kTokenOffset, 256 + kTokenOffset};
  EXPECT_EQ(merge_by_steps(model, "abc"), expected);
  EXPECT_EQ(encode(build(model), "abc"), expected);
}

TEST(Bpe, PiecesOfEveryLengthInOneGroupKeepTheirOrder) {
  std::mt19937 random(4);
  const Model model = random_model(random, 3, 40);
  const Bpe bpe = build(model);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i != 3 * Bpe::kGroupMax + 1; ++i) {
    std::string piece(1 + i % 20, 'a');
    for (char& c : piece) {
      c = static_cast<char>('a' + random() % 3);
    }
    texts.push_back(piece);
  }
  std::vector<std::string_view> pieces(texts.begin(), texts.end());
  std::vector<TokenId> expected = {7};
  for (const std::string_view piece : pieces) {
    const std::vector<TokenId> ids = merge_by_steps(model, piece);
    expected.insert(expected.end(), ids.begin(), ids.end());
  }
  std::vector<TokenId> ids = {7};  // what is there stays
  bpe.encode(pieces, ids);
  EXPECT_EQ(ids, expected);
}

TEST(Bpe, AMillionEqualLettersTakeLinearTime) {
  // Twenty doublings: the longest symbol never fits at the end, where the way back is longest. By
  // steps this would be 10^12 comparisons.
  Model model;
  Bpe::Symbol last = 'a';
  for (Bpe::Symbol symbol = 256; symbol != 266; ++symbol) {
    model.merges.push_back({last, last});
    last = symbol;
  }
  const std::vector<TokenId> ids = encode(build(model), std::string(1'000'001, 'a'));
  EXPECT_EQ(ids.size(), 1'000'001 / 1'024 + 3);  // 577 = 512 + 64 + 1
  EXPECT_EQ(ids.back(), 'a' + kTokenOffset);
}

}  // namespace
}  // namespace galley::recipe
