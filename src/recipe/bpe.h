#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "recipe/byte_trie.h"

// Byte pair encoding of one piece (spec recipe 1.3): of all neighbours that a merge joins, join the
// pair of the earliest merge, leftmost first, until none is left.
namespace galley::recipe {

// Instead of merging step by step, this looks for the one sequence of symbols in which no two
// neighbours would have been merged across their border. Such a sequence is what merging yields:
// the first merge that crossed a border would be visible from the two symbols beside it alone.
// So it is found from left to right, longest symbol first, going back where two neighbours do not
// go together. The answer for each beginning of the piece is unique, hence no position is given up
// twice, and the time is linear in the piece. Immutable, any thread.
class Bpe {
 public:
  // A byte (below 256), or 256 + n for what merge n makes. A later merge has the greater symbol.
  using Symbol = std::uint32_t;
  static constexpr std::size_t kSymbolsMax = std::size_t{1} << 20U;

  struct Merge {
    Symbol left{};
    Symbol right{};
  };

  Bpe() = default;

  // `merges` use only earlier symbols, each pair at most once, and make different strings; `tokens`
  // has the id of every symbol. The caller has checked all that. Error: kTooLarge.
  static Result<Bpe> build(const std::vector<Merge>& merges, const std::vector<TokenId>& tokens);

  // Appends the ids of the pieces, none of them empty. A group of tens is faster than one by one:
  // the memory that tells which of them are tokens is then fetched side by side.
  void encode(std::span<const std::string_view> pieces, std::vector<TokenId>& ids) const;
  static constexpr std::size_t kGroupMax = 32;

 private:
  // Symbols of up to 12 bytes, for the most frequent question: is the whole piece one of them?
  class Whole {
   public:
    // Two overlapping halves and the length stand for all bytes.
    struct Key {
      std::uint64_t first{};
      std::uint32_t last{};
      std::uint32_t bytes{};
    };
    static constexpr std::size_t kBytesMax = 12;
    static Key key(std::string_view text);

    void reserve(std::size_t count);
    void insert(const Key& key, TokenId token);
    [[nodiscard]] std::size_t slot(const Key& key) const;
    void prefetch(std::size_t slot) const { __builtin_prefetch(&entries_[slot]); }
    // The token, or kNone. `slot` is the key's.
    [[nodiscard]] TokenId find(const Key& key, std::size_t slot) const;

   private:
    struct Entry {
      std::uint64_t first{};
      std::uint32_t last{};
      std::uint32_t bytes_token{};  // length << kTokenBits | token; 0 in an empty entry
    };
    std::vector<Entry> entries_;
    unsigned shift_ = 63;
  };

  // Pairs that a merge joins: open addressing, at most half full. An entry packs left, right and
  // the result's symbol.
  class Pairs {
   public:
    void reserve(std::size_t count);
    void insert(Symbol left, Symbol right, Symbol result);
    // kNone when no merge joins them.
    [[nodiscard]] Symbol find(Symbol left, Symbol right) const;

   private:
    static std::uint64_t hash(std::uint64_t key) { return key * 0x9E3779B97F4A7C15U; }

    std::vector<std::uint64_t> entries_;
    // Most pairs that are asked for are not there. One bit for each entry's hash says so for seven
    // of eight, from memory small enough to stay close.
    std::vector<std::uint64_t> filter_;
    unsigned shift_ = 63;
  };

  static constexpr Symbol kNone = ByteTrie::kNone;

  void encode_parts(std::string_view piece, std::vector<TokenId>& ids) const;
  [[nodiscard]] std::string spell_all() const;
  [[nodiscard]] bool stay_apart(Symbol left, Symbol right, Symbol limit = kNone) const;

  struct Info {
    Merge parts;  // of a byte, unused
    std::uint32_t bytes{};
    TokenId token{};
  };

  std::vector<Info> symbols_;
  std::vector<Symbol> shorter_;  // by symbol: the longest that is a proper prefix of it, or kNone
  Pairs pairs_;
  Whole whole_;
  ByteTrie trie_;  // of the symbols that their own bytes are merged into
};

}  // namespace galley::recipe
