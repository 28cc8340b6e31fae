#include "recipe/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <fmt/core.h>
#include <functional>
#include <initializer_list>
#include <optional>
#include <simdjson.h>
#include <unordered_map>

#include "recipe/limits.h"
#include "recipe/pretokenizer.h"

namespace galley::recipe {
namespace {

using simdjson::dom::element;

std::unexpected<Error> bad(std::string what, std::string_view where) {
  return fail(Code::kInvalidArgument, std::move(what), std::string(where));
}

// The members of one object. Reading it refuses members it is not asked about, and repeated ones.
class Fields {
 public:
  static Result<Fields> read(element value,
                             std::string_view where,
                             std::initializer_list<std::string_view> known) {
    simdjson::dom::object object;
    if (value.get(object) != simdjson::SUCCESS) {
      return bad("is not an object", where);
    }
    Fields fields;
    fields.where_ = where;
    for (const auto [key, member] : object) {
      if (std::ranges::find(known, key) == known.end()) {
        return bad("is not supported", fields.path(key));
      }
      if (fields.find(key)) {
        return bad("is there twice", fields.path(key));
      }
      fields.members_.emplace_back(key, member);
    }
    return fields;
  }

  [[nodiscard]] std::optional<element> find(std::string_view key) const {
    const auto member = std::ranges::find(members_, key, &Member::first);
    return member == members_.end() ? std::nullopt : std::optional(member->second);
  }

  [[nodiscard]] std::string path(std::string_view key) const {
    return where_.empty() ? std::string(key) : fmt::format("{}.{}", where_, key);
  }

  template <class T>
  [[nodiscard]] Result<T> get(std::string_view key) const {
    const std::optional<element> member = find(key);
    T value{};
    if (!member || member->get(value) != simdjson::SUCCESS) {
      return bad(member ? "has the wrong type" : "is missing", path(key));
    }
    return value;
  }

  template <class T>
  [[nodiscard]] Result<void> expect(std::string_view key, T expected) const {
    GALLEY_TRY(const T value, get<T>(key));
    if (value != expected) {
      return bad(fmt::format("must be {}, not {}", expected, value), path(key));
    }
    return {};
  }

  // Absent, null, false and "" all mean that a feature is not used.
  [[nodiscard]] Result<void> expect_unused(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      const std::optional<element> member = find(key);
      const auto is = [&](auto unused) {
        decltype(unused) value{};
        return member->get(value) == simdjson::SUCCESS && value == unused;
      };
      if (member && !member->is_null() && !is(false) && !is(std::string_view())) {
        return bad("is not supported", path(key));
      }
    }
    return {};
  }

 private:
  using Member = std::pair<std::string_view, element>;
  std::string where_;
  std::vector<Member> members_;
};

Result<void> check_normalizer(element value) {
  if (value.is_null()) {
    return {};
  }
  GALLEY_TRY(const Fields fields, Fields::read(value, "normalizer", {"type", "normalizers"}));
  GALLEY_CHECK_OK(fields.expect<std::string_view>("type", "Sequence"));
  GALLEY_TRY(const auto steps, fields.get<simdjson::dom::array>("normalizers"));
  if (steps.size() != 0) {
    return bad("must be empty", "normalizer.normalizers");
  }
  return {};
}

Result<void> check_split(element value,
                         std::string_view where,
                         std::initializer_list<std::string_view> patterns) {
  GALLEY_TRY(const Fields fields,
             Fields::read(value, where, {"type", "pattern", "behavior", "invert"}));
  GALLEY_CHECK_OK(fields.expect<std::string_view>("type", "Split"));
  GALLEY_CHECK_OK(fields.expect<std::string_view>("behavior", "Isolated"));
  GALLEY_CHECK_OK(fields.expect<bool>("invert", false));
  GALLEY_TRY(const element pattern, fields.get<element>("pattern"));
  GALLEY_TRY(const Fields regex, Fields::read(pattern, fields.path("pattern"), {"Regex"}));
  GALLEY_TRY(const auto text, regex.get<std::string_view>("Regex"));
  if (std::ranges::find(patterns, text) == patterns.end()) {
    return bad(fmt::format("unknown pattern {}", text), regex.path("Regex"));
  }
  return {};
}

Result<void> check_pre_tokenizer(element value) {
  GALLEY_TRY(const Fields fields, Fields::read(value, "pre_tokenizer", {"type", "pretokenizers"}));
  GALLEY_CHECK_OK(fields.expect<std::string_view>("type", "Sequence"));
  GALLEY_TRY(const auto steps, fields.get<simdjson::dom::array>("pretokenizers"));
  if (steps.size() != 4) {
    return bad("must have 4 steps", "pre_tokenizer.pretokenizers");
  }
  const auto step = [&](std::size_t index) { return steps.at(index).value_unsafe(); };
  const auto path = [](int index) { return fmt::format("pre_tokenizer.pretokenizers[{}]", index); };
  GALLEY_CHECK_OK(check_split(step(0), path(0), {kNumberPattern}));
  GALLEY_CHECK_OK(check_split(step(1), path(1), {kEastPattern}));
  GALLEY_CHECK_OK(check_split(step(2), path(2), {kWordPattern, kWordPatternRaw}));
  GALLEY_TRY(
      const Fields last,
      Fields::read(step(3), path(3), {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  GALLEY_CHECK_OK(last.expect<std::string_view>("type", "ByteLevel"));
  GALLEY_CHECK_OK(last.expect<bool>("add_prefix_space", false));
  return last.expect<bool>("use_regex", false);
}

// As a post-processor ByteLevel only moves offsets, which we do not report; as a decoder it is the
// inverse of the byte table, whatever its flags.
Result<void> check_byte_level(element value, std::string_view where) {
  GALLEY_TRY(const Fields fields,
             Fields::read(value, where, {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
  return fields.expect<std::string_view>("type", "ByteLevel");
}

// GPT-2's table: printable Latin-1 bytes stand for themselves, the other 68, ascending, for U+0100
// and on.
constexpr std::size_t kByteAlphabet = 0x144;

struct ByteTable {
  std::array<std::uint16_t, 256> code_point_of{};
  std::array<std::int16_t, kByteAlphabet> byte_of{};
};

constexpr ByteTable byte_table() {
  ByteTable table;
  table.byte_of.fill(-1);
  std::uint16_t next = 0x100;
  for (std::uint16_t byte = 0; byte < 256; ++byte) {
    const bool itself =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    const std::uint16_t code_point = itself ? byte : next++;
    table.code_point_of[byte] = code_point;
    table.byte_of[code_point] = static_cast<std::int16_t>(byte);
  }
  return table;
}
constexpr ByteTable kBytes = byte_table();

// Appends the bytes that `text` spells; false when a character is outside the table.
bool append_bytes(std::string_view text, std::string& out) {
  for (std::size_t i = 0; i != text.size(); ++i) {
    std::size_t code_point = static_cast<unsigned char>(text[i]);
    if (code_point >= 0xE0) {
      return false;
    }
    if (code_point >= 0xC0) {
      code_point = (code_point & 0x1FU) << 6U | (static_cast<unsigned char>(text[++i]) & 0x3FU);
    }
    if (code_point >= kByteAlphabet || kBytes.byte_of[code_point] < 0) {
      return false;
    }
    out += static_cast<char>(kBytes.byte_of[code_point]);
  }
  return true;
}

std::string spelling_of_byte(std::size_t byte) {
  const unsigned code_point = kBytes.code_point_of[byte];
  if (code_point < 0x80) {
    return {static_cast<char>(code_point)};
  }
  return {static_cast<char>(0xC0U | code_point >> 6U),
          static_cast<char>(0x80U | (code_point & 0x3FU))};
}

// Spelling -> id. Half a million look-ups make up most of the loading time; open addressing takes a
// third of what std::unordered_map takes for them.
class SpellingIndex {
 public:
  static constexpr TokenId kNone = ~TokenId{0};

  void reserve(std::size_t count) { slots_.assign(std::bit_ceil(count * 2 + 2), Slot{}); }

  // The id that was there already, else kNone. At most as many spellings as were reserved.
  TokenId insert(std::string_view text, TokenId id) {
    Slot& slot = slots_[find_slot(text)];
    return slot.id == kNone ? (slot = {text, id}, kNone) : slot.id;
  }

  [[nodiscard]] TokenId find(std::string_view text) const { return slots_[find_slot(text)].id; }

 private:
  struct Slot {
    std::string_view text;
    TokenId id = kNone;
  };

  [[nodiscard]] std::size_t find_slot(std::string_view text) const {
    std::size_t at = std::hash<std::string_view>{}(text);
    while (true) {
      const Slot& slot = slots_[at &= slots_.size() - 1];
      if (slot.id == kNone || slot.text == text) {
        return at;
      }
      ++at;
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(2);
};

// Reads the parts in the order in which they need each other.
class Reader {
 public:
  explicit Reader(const TokenizerOptions& options) : options_(options) {}

  Result<TokenizerJson> read(element root) {
    GALLEY_TRY(const Fields fields,
               Fields::read(root, "",
                            {"version", "truncation", "padding", "added_tokens", "normalizer",
                             "pre_tokenizer", "post_processor", "decoder", "model"}));
    GALLEY_CHECK_OK(fields.expect<std::string_view>("version", "1.0"));
    GALLEY_CHECK_OK(fields.expect_unused({"truncation", "padding"}));
    if (const auto normalizer = fields.find("normalizer")) {
      GALLEY_CHECK_OK(check_normalizer(*normalizer));
    }
    GALLEY_TRY(const element pre_tokenizer, fields.get<element>("pre_tokenizer"));
    GALLEY_CHECK_OK(check_pre_tokenizer(pre_tokenizer));
    if (const auto post = fields.find("post_processor"); post && !post->is_null()) {
      GALLEY_CHECK_OK(check_byte_level(*post, "post_processor"));
    }
    GALLEY_TRY(const element decoder, fields.get<element>("decoder"));
    GALLEY_CHECK_OK(check_byte_level(decoder, "decoder"));
    GALLEY_TRY(const element model, fields.get<element>("model"));
    GALLEY_CHECK_OK(read_model(model));
    GALLEY_TRY(const auto added, fields.get<simdjson::dom::array>("added_tokens"));
    GALLEY_CHECK_OK(read_added(added));
    GALLEY_CHECK_OK(rename_added());
    GALLEY_CHECK_OK(lay_out_bytes());
    GALLEY_CHECK_OK(check_added_ids());
    return std::move(out_);
  }

 private:
  Result<void> read_model(element value) {
    GALLEY_TRY(const Fields fields,
               Fields::read(value, "model",
                            {"type", "dropout", "unk_token", "continuing_subword_prefix",
                             "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                             "vocab", "merges"}));
    GALLEY_CHECK_OK(fields.expect<std::string_view>("type", "BPE"));
    GALLEY_CHECK_OK(
        fields.expect_unused({"dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"}));
    GALLEY_TRY(const auto vocabulary, fields.get<simdjson::dom::object>("vocab"));
    GALLEY_CHECK_OK(read_vocabulary(vocabulary));
    GALLEY_TRY(const auto merges, fields.get<simdjson::dom::array>("merges"));
    return read_merges(merges);
  }

  Result<void> read_vocabulary(simdjson::dom::object vocabulary) {
    ids_.reserve(vocabulary.size());
    vocabulary_size_ = static_cast<TokenId>(vocabulary.size());
    for (const auto [text, value] : vocabulary) {
      std::uint64_t id = 0;
      if (value.get(id) != simdjson::SUCCESS || id >= kTokenIdsMax) {
        return bad(fmt::format("id of \"{}\" is not an integer below {}", text, kTokenIdsMax),
                   "model.vocab");
      }
      if (text.empty() || text.size() > kTokenBytesMax) {
        return bad(fmt::format("token {} is empty or longer than {} bytes", id, kTokenBytesMax),
                   "model.vocab");
      }
      if (ids_.insert(text, static_cast<TokenId>(id)) != SpellingIndex::kNone) {
        return bad(fmt::format("\"{}\" is there twice", text), "model.vocab");
      }
      GALLEY_CHECK_OK(claim(static_cast<TokenId>(id), text, "model.vocab"));
    }
    symbol_of_.assign(texts_.size(), kNoSymbol);
    for (std::size_t byte = 0; byte != 256; ++byte) {
      const TokenId id = ids_.find(spelling_of_byte(byte));
      if (id == SpellingIndex::kNone) {
        return bad(fmt::format("has no token for byte 0x{:02x}", byte), "model.vocab");
      }
      symbol_of_[id] = static_cast<Bpe::Symbol>(byte);
      out_.symbol_tokens.push_back(id);
    }
    return {};
  }

  Result<void> read_merges(simdjson::dom::array merges) {
    std::string joined;
    for (const element merge : merges) {
      const auto where = [&] { return fmt::format("model.merges[{}]", out_.merges.size()); };
      std::string_view left;
      std::string_view right;
      if (!split_merge(merge, left, right)) {
        return bad("is not a pair of tokens", where());
      }
      const TokenId left_id = ids_.find(left);
      const TokenId right_id = ids_.find(right);
      const TokenId joined_id = ids_.find(joined.assign(left).append(right));
      if (std::max({left_id, right_id, joined_id}) == SpellingIndex::kNone) {
        return bad(
            fmt::format("\"{}\", \"{}\" or both joined are not in the vocabulary", left, right),
            where());
      }
      const Bpe::Symbol left_symbol = symbol_of_[left_id];
      const Bpe::Symbol right_symbol = symbol_of_[right_id];
      if (left_symbol == kNoSymbol || right_symbol == kNoSymbol) {
        return bad(fmt::format("\"{}\" or \"{}\" is made by no earlier merge", left, right),
                   where());
      }
      Bpe::Symbol& symbol = symbol_of_[joined_id];
      if (symbol != kNoSymbol) {
        return bad(fmt::format("\"{}\" is made by an earlier merge as well", joined), where());
      }
      symbol = static_cast<Bpe::Symbol>(out_.symbol_tokens.size());
      out_.symbol_tokens.push_back(joined_id);
      out_.merges.push_back({left_symbol, right_symbol});
    }
    return {};
  }

  // "a b", as older files have it, or ["a", "b"].
  static bool split_merge(element merge, std::string_view& left, std::string_view& right) {
    std::string_view text;
    if (merge.get(text) == simdjson::SUCCESS) {
      const std::size_t space = text.find(' ');
      if (space == std::string_view::npos) {
        return false;
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
      return true;
    }
    simdjson::dom::array pair;
    return merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
           pair.at(0).get(left) == simdjson::SUCCESS && pair.at(1).get(right) == simdjson::SUCCESS;
  }

  Result<void> read_added(simdjson::dom::array added) {
    for (const element token : added) {
      const std::string where = fmt::format("added_tokens[{}]", added_.size());
      GALLEY_TRY(const Fields fields, Fields::read(token, where,
                                                   {"id", "content", "single_word", "lstrip",
                                                    "rstrip", "normalized", "special"}));
      GALLEY_CHECK_OK(fields.expect_unused({"single_word", "lstrip", "rstrip"}));
      GALLEY_TRY(const auto content, fields.get<std::string_view>("content"));
      GALLEY_TRY(const auto id, fields.get<std::uint64_t>("id"));
      if (id >= kTokenIdsMax || content.empty() || content.size() > kTokenBytesMax) {
        return bad("has an id or a length out of bounds", where);
      }
      // An added token may be in the vocabulary too, as the same token.
      const TokenId same = ids_.find(content);
      if (same == SpellingIndex::kNone) {
        GALLEY_CHECK_OK(claim(static_cast<TokenId>(id), content, where));
      } else if (same != id) {
        return bad(fmt::format("has id {} in the vocabulary", same), where);
      }
      if (!added_.emplace(static_cast<TokenId>(id), content).second) {
        return bad("repeats an id", where);
      }
      added_order_.push_back({static_cast<TokenId>(id), same == SpellingIndex::kNone});
    }
    return {};
  }

  Result<void> rename_added() {
    for (const auto& [id, spelling] : options_.rename) {
      const auto token = added_.find(id);
      if (token == added_.end() || spelling.empty() || spelling.size() > kTokenBytesMax) {
        return bad(fmt::format("cannot rename token {}", id), "added_tokens");
      }
      token->second = spelling;
    }
    for (const auto& [id, spelling] : added_) {
      out_.added.emplace_back(spelling, id);
      texts_[id] = spelling;
    }
    std::ranges::sort(out_.added);
    const auto twice = std::ranges::adjacent_find(
        out_.added, {}, [](const auto& a) { return std::string_view(a.first); });
    if (twice != out_.added.end()) {
      return bad(fmt::format("\"{}\" is there twice", twice->first), "added_tokens");
    }
    return {};
  }

  Result<void> lay_out_bytes() {
    out_.offsets.reserve(texts_.size() + 1);
    for (TokenId id = 0; id != texts_.size(); ++id) {
      out_.offsets.push_back(static_cast<std::uint32_t>(out_.bytes.size()));
      if (added_.contains(id)) {
        out_.bytes += texts_[id];
      } else if (!append_bytes(texts_[id], out_.bytes)) {
        return bad(fmt::format("token {} is not byte-level text", id), "model.vocab");
      }
    }
    out_.offsets.push_back(static_cast<std::uint32_t>(out_.bytes.size()));
    return {};
  }

  // HF numbers added tokens itself, whatever the file says: behind the vocabulary's size, which is
  // not its last id when ids are missing, and in the file's order. A file that says otherwise has
  // two readings. An id that the vocabulary leaves out is none's, here as there.
  [[nodiscard]] Result<void> check_added_ids() const {
    TokenId next = vocabulary_size_;
    for (std::size_t i = 0; i < added_order_.size(); ++i) {
      const auto& [id, is_new] = added_order_[i];
      if (is_new && id != next) {
        return bad(
            fmt::format("id {} leaves a gap or comes out of order: the next one is {}", id, next),
            fmt::format("added_tokens[{}]", i));
      }
      next = std::max(next, id + 1);
    }
    return {};
  }

  Result<void> claim(TokenId id, std::string_view text, std::string_view where) {
    if (id >= texts_.size()) {
      texts_.resize(id + 1);
    }
    if (!texts_[id].empty()) {
      return bad(fmt::format("id {} is taken", id), where);
    }
    texts_[id] = text;
    return {};
  }

  static constexpr Bpe::Symbol kNoSymbol = ~Bpe::Symbol{0};

  const TokenizerOptions& options_;
  TokenizerJson out_;
  TokenId vocabulary_size_ = 0;          // tokens of the base vocabulary
  SpellingIndex ids_;                    // base vocabulary, as the file spells it
  std::vector<std::string_view> texts_;  // by id, empty for none
  std::vector<Bpe::Symbol> symbol_of_;   // by id
  std::unordered_map<TokenId, std::string> added_;
  struct AddedPlace {
    TokenId id{};
    bool is_new{};  // not in the vocabulary
  };
  std::vector<AddedPlace> added_order_;  // as in the file
};

}  // namespace

Result<TokenizerJson> read_tokenizer_json(std::string_view json, const TokenizerOptions& options) {
  if (json.size() > kTokenizerJsonBytesMax) {
    return fail(Code::kTooLarge, fmt::format("larger than {} bytes", kTokenizerJsonBytesMax));
  }
  simdjson::dom::parser parser;
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root)) {
    return bad(fmt::format("not JSON: {}", simdjson::error_message(error)), "");
  }
  return Reader(options).read(root);
}

}  // namespace galley::recipe
