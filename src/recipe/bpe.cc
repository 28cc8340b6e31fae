#include "recipe/bpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace galley::recipe {
namespace {

constexpr Bpe::Symbol kByteCount = 256;
constexpr unsigned kSymbolBits = 20;
constexpr unsigned kTokenBits = 28;  // beside them, 4 bits of length
constexpr std::uint64_t kHashFactor = 0x9E3779B97F4A7C15U;
constexpr unsigned kFilterShift = 2;
constexpr std::size_t kFilterBitsPerSlot = std::size_t{1} << kFilterShift;
static_assert(Bpe::kSymbolsMax == std::size_t{1} << kSymbolBits);

// Positions of a piece from which no symbol can go on.
class Positions {
 public:
  explicit Positions(std::size_t count) {
    if (count > kInline * 64) {
      many_.resize(count / 64 + 1);
      words_ = many_.data();
    }
  }
  Positions(const Positions&) = delete;
  Positions& operator=(const Positions&) = delete;

  void add(std::size_t at) { words_[at / 64] |= std::uint64_t{1} << (at % 64); }
  [[nodiscard]] bool has(std::size_t at) const {
    return ((words_[at / 64] >> (at % 64)) & 1U) != 0;
  }

 private:
  static constexpr std::size_t kInline = 4;
  std::array<std::uint64_t, kInline + 1> few_{};
  std::vector<std::uint64_t> many_;
  std::uint64_t* words_ = few_.data();
};

// A symbol's bytes, ordered by them; the first eight, as one number, decide nearly always.
struct Spelled {
  Spelled(std::string_view bytes, Bpe::Symbol which) : text(bytes), symbol(which) {
    for (std::size_t i = 0; i != 8; ++i) {
      head = head << 8U | (i < text.size() ? static_cast<unsigned char>(text[i]) : 0U);
    }
  }
  std::uint64_t head = 0;
  std::string_view text;
  Bpe::Symbol symbol;
  auto operator<=>(const Spelled&) const = default;
};

}  // namespace

void Bpe::Pairs::reserve(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(count * 2, 64));
  entries_.assign(slots, 0);
  filter_.assign(slots * kFilterBitsPerSlot / 64, 0);
  shift_ = 64 - static_cast<unsigned>(std::bit_width(slots - 1));
}

// A result is never symbol 0, so an entry is never 0.
void Bpe::Pairs::insert(Symbol left, Symbol right, Symbol result) {
  const std::uint64_t key = std::uint64_t{left} << kSymbolBits | right;
  const std::uint64_t bit = hash(key) >> (shift_ - kFilterShift);
  filter_[bit / 64] |= std::uint64_t{1} << (bit % 64);
  std::size_t at = hash(key) >> shift_;
  while (entries_[at] != 0) {
    at = (at + 1) & (entries_.size() - 1);
  }
  entries_[at] = key << kSymbolBits | result;
}

Bpe::Symbol Bpe::Pairs::find(Symbol left, Symbol right) const {
  const std::uint64_t key = std::uint64_t{left} << kSymbolBits | right;
  const std::uint64_t bit = hash(key) >> (shift_ - kFilterShift);
  if (((filter_[bit / 64] >> (bit % 64)) & 1U) == 0) {
    return kNone;
  }
  for (std::size_t at = hash(key) >> shift_; entries_[at] != 0;
       at = (at + 1) & (entries_.size() - 1)) {
    if (entries_[at] >> kSymbolBits == key) {
      return static_cast<Symbol>(entries_[at] & (kSymbolsMax - 1));
    }
  }
  return kNone;
}

Bpe::Whole::Key Bpe::Whole::key(std::string_view text) {
  const char* begin = text.data();
  const auto bytes = static_cast<std::uint32_t>(text.size());
  const auto four = [](const char* at) {
    std::uint32_t value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  };
  if (bytes >= 8) {
    return {four(begin) | std::uint64_t{four(begin + 4)} << 32U, four(begin + bytes - 4), bytes};
  }
  if (bytes >= 4) {
    return {four(begin) | std::uint64_t{four(begin + bytes - 4)} << 32U, 0, bytes};
  }
  const auto one = [begin](std::uint32_t index) {
    return std::uint64_t{static_cast<unsigned char>(begin[index])};
  };
  return {one(0) | one(bytes / 2) << 8U | one(bytes - 1) << 16U, 0, bytes};
}

void Bpe::Whole::reserve(std::size_t count) {
  const std::size_t slots = std::bit_ceil(std::max<std::size_t>(count * 2, 2));
  entries_.assign(slots, {});
  shift_ = 64 - static_cast<unsigned>(std::bit_width(slots - 1));
}

std::size_t Bpe::Whole::slot(const Key& key) const {
  const std::uint64_t rest = std::uint64_t{key.bytes} << 32U | key.last;
  return ((key.first + rest * kHashFactor) * kHashFactor) >> shift_;
}

void Bpe::Whole::insert(const Key& key, TokenId token) {
  GALLEY_ASSERT(token < 1U << kTokenBits);
  std::size_t at = slot(key);
  while (entries_[at].bytes_token != 0) {
    at = (at + 1) & (entries_.size() - 1);
  }
  entries_[at] = {key.first, key.last, key.bytes << kTokenBits | token};
}

TokenId Bpe::Whole::find(const Key& key, std::size_t slot) const {
  while (true) {
    const Entry& entry = entries_[slot];
    if (entry.first == key.first && entry.last == key.last &&
        entry.bytes_token >> kTokenBits == key.bytes) {
      return entry.bytes_token & ((1U << kTokenBits) - 1);
    }
    if (entry.bytes_token == 0) {
      return kNone;
    }
    slot = (slot + 1) & (entries_.size() - 1);
  }
}

Result<Bpe> Bpe::build(const std::vector<Merge>& merges, const std::vector<TokenId>& tokens) {
  const std::size_t count = kByteCount + merges.size();
  if (count > kSymbolsMax) {
    return fail(Code::kTooLarge, "too many merges");
  }
  GALLEY_ASSERT(tokens.size() == count);
  Bpe bpe;
  bpe.symbols_.assign(count, {.bytes = 1});
  bpe.shorter_.assign(count, kNone);
  bpe.pairs_.reserve(merges.size());
  for (Symbol symbol = kByteCount; symbol != count; ++symbol) {
    const Merge merge = merges[symbol - kByteCount];
    GALLEY_ASSERT(std::max(merge.left, merge.right) < symbol);
    bpe.symbols_[symbol].parts = merge;
    bpe.symbols_[symbol].bytes = bpe.symbols_[merge.left].bytes + bpe.symbols_[merge.right].bytes;
    bpe.pairs_.insert(merge.left, merge.right, symbol);
  }

  for (Symbol symbol = 0; symbol != count; ++symbol) {
    bpe.symbols_[symbol].token = tokens[symbol];
  }

  // Their own bytes are merged into a symbol when that holds for its parts and nothing crosses
  // their border before the symbol's own merge.
  std::vector<bool> reached(count, true);
  for (Symbol symbol = kByteCount; symbol != count; ++symbol) {
    const auto [left, right] = bpe.symbols_[symbol].parts;
    reached[symbol] = reached[left] && reached[right] && bpe.stay_apart(left, right, symbol);
  }

  const std::string texts = bpe.spell_all();
  std::vector<Spelled> spelled;
  std::size_t begin = 0;
  for (Symbol symbol = 0; symbol != count; ++symbol) {
    if (reached[symbol]) {
      spelled.emplace_back(std::string_view(texts).substr(begin, bpe.symbols_[symbol].bytes),
                           symbol);
    }
    begin += bpe.symbols_[symbol].bytes;
  }
  std::ranges::sort(spelled);
  std::vector<std::pair<std::string_view, std::uint32_t>> entries;
  entries.reserve(spelled.size());
  bpe.whole_.reserve(spelled.size());
  for (const Spelled& one : spelled) {
    if (one.text.size() <= Whole::kBytesMax) {
      bpe.whole_.insert(Whole::key(one.text), tokens[one.symbol]);
    }
    entries.emplace_back(one.text, one.symbol);
  }
  GALLEY_TRY(bpe.trie_, ByteTrie::build(entries));
  for (const auto& [string, symbol] : entries) {
    bpe.shorter_[symbol] = bpe.trie_.longest_prefix(string.substr(0, string.size() - 1)).value;
  }
  return bpe;
}

// The bytes of all symbols, one after the other.
std::string Bpe::spell_all() const {
  std::string texts;
  std::vector<std::size_t> begin(symbols_.size());
  for (Symbol symbol = 0; symbol != symbols_.size(); ++symbol) {
    begin[symbol] = texts.size();
    if (symbol < kByteCount) {
      texts += static_cast<char>(symbol);
      continue;
    }
    for (const Symbol part : {symbols_[symbol].parts.left, symbols_[symbol].parts.right}) {
      texts.append(texts, begin[part], symbols_[part].bytes);
    }
  }
  return texts;
}

// Whether merging keeps the border between two symbols that stand side by side, each merged from
// its own bytes. Their merges are undone, latest first; `left` and `right` are then what stood at
// the border, until `limit` consumed one of them. A merge of the two that comes before it would
// have crossed. Of two equal merges the left one came first, so it is undone last, and it wins a
// tie against a crossing one; the right one loses it.
bool Bpe::stay_apart(Symbol left, Symbol right, Symbol limit) const {
  while (true) {
    if (const Symbol joined = pairs_.find(left, right); joined < limit) {
      return false;
    }
    if (std::max(left, right) < kByteCount) {
      return true;
    }
    if (left > right) {
      limit = left;
      left = symbols_[left].parts.right;
    } else {
      limit = right + 1;
      right = symbols_[right].parts.left;
    }
  }
}

void Bpe::encode(std::span<const std::string_view> pieces, std::vector<TokenId>& ids) const {
  struct Place {
    Whole::Key key;
    std::size_t slot{};
  };
  std::array<Place, kGroupMax> places;
  while (!pieces.empty()) {
    const auto group = pieces.first(std::min(pieces.size(), kGroupMax));
    pieces = pieces.subspan(group.size());
    for (std::size_t i = 0; i != group.size(); ++i) {
      if (group[i].size() <= Whole::kBytesMax) {
        places[i].key = Whole::key(group[i]);
        places[i].slot = whole_.slot(places[i].key);
        whole_.prefetch(places[i].slot);
      }
    }
    for (std::size_t i = 0; i != group.size(); ++i) {
      const TokenId token =
          group[i].size() <= Whole::kBytesMax ? whole_.find(places[i].key, places[i].slot) : kNone;
      if (token != kNone) {
        ids.push_back(token);
      } else {
        encode_parts(group[i], ids);
      }
    }
  }
}

void Bpe::encode_parts(std::string_view piece, std::vector<TokenId>& ids) const {
  ByteTrie::Match next = trie_.longest_prefix(piece);
  if (next.bytes == piece.size()) {
    ids.push_back(symbols_[next.value].token);
    return;
  }
  const std::size_t first = ids.size();
  Positions dead_ends(piece.size());
  std::size_t at = 0;
  const auto fits = [&](Symbol symbol, std::size_t bytes) {
    return !dead_ends.has(at + bytes) && (ids.size() == first || stay_apart(ids.back(), symbol));
  };
  while (at != piece.size()) {
    // The longest symbol nearly always fits. Looking for the one behind it first gives memory the
    // time to deliver what the check needs.
    __builtin_prefetch(&symbols_[next.value]);
    const ByteTrie::Match ahead = trie_.longest_prefix(piece.substr(at + next.bytes));
    if (fits(next.value, next.bytes)) {
      ids.push_back(next.value);
      at += next.bytes;
      next = ahead;
      continue;
    }
    Symbol symbol = next.value;
    do {
      symbol = shorter_[symbol];
      while (symbol == kNone) {
        GALLEY_ASSERT(ids.size() > first);
        dead_ends.add(at);
        at -= symbols_[ids.back()].bytes;
        symbol = shorter_[ids.back()];
        ids.pop_back();
      }
    } while (!fits(symbol, symbols_[symbol].bytes));
    ids.push_back(symbol);
    at += symbols_[symbol].bytes;
    next = trie_.longest_prefix(piece.substr(at));
  }
  for (std::size_t i = first; i != ids.size(); ++i) {
    ids[i] = symbols_[ids[i]].token;
  }
}

}  // namespace galley::recipe
