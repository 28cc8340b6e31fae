#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/mutex.h"
#include "base/result.h"
#include "base/units.h"
#include "recipe/answer_grammar.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

struct LlgConstraintInit;
struct LlgMatcher;
struct LlgTokenizer;

// Grammars over tokens: which token may come next (spec runtime 10). The one place that knows the
// library llguidance, which compiles schemas, regular expressions and grammars.
namespace galley::engine {

// ---- bounds of one grammar. What a hostile one costs is measured in grammar_test.cc.

inline constexpr std::size_t kGrammarBytesMax = std::size_t{512} << 10U;  // its text
inline constexpr std::size_t kGrammarSymbolsMax = 100'000;                // compiled
inline constexpr std::uint64_t kGrammarFuel = 1'000'000;  // to compile its terminals
// Of address space. The library goes down as deep as references of a schema or rules of a grammar
// follow on one another: 20 MiB for the longest chain that is let in (grammar_test.cc has it).
inline constexpr std::size_t kCompileStackBytes = std::size_t{64} << 20U;
inline constexpr std::size_t kLexerStatesMax = 12'000;  // 1-2 KB each, shared by its matchers
// Of one mask: a grammar that needs more fails its request.
inline constexpr std::uint64_t kMaskFuel = 400'000;
inline constexpr std::size_t kMaskItemsMax = 20'000;
inline constexpr std::size_t kMaskItemsOfAByteMax = 4'000;
// A request for which that many masks running took longer than this fails, too (spec runtime 10.3).
inline constexpr Duration kSlowMask = std::chrono::milliseconds(20);
inline constexpr int kSlowMasksMax = 3;
// Accepted tokens that can be taken back: drafts of one step and a few.
inline constexpr std::size_t kRollbackMax = 64;

// A mask has a bit a token, least significant first: 1 where it may come.
using MaskWord = std::uint32_t;
inline constexpr std::size_t kMaskWordBits = 32;
[[nodiscard]] inline bool allows(std::span<const MaskWord> mask, TokenId token) {
  const std::size_t word = token / kMaskWordBits;
  return word < mask.size() && ((mask[word] >> (token % kMaskWordBits)) & 1U) != 0;
}

// What tokens are made of, as grammars see it. Immutable; any thread.
class GrammarVocabulary {
 public:
  // `end` is the token that ends an answer. Added tokens are none of the text, whatever they are
  // spelled like: a grammar names them by id.
  static Result<std::shared_ptr<const GrammarVocabulary>> create(const recipe::Tokenizer& tokenizer,
                                                                 TokenId end);
  // `tokens`: bytes of each; a control token has a first byte 0xFF.
  static Result<std::shared_ptr<const GrammarVocabulary>> create(
      std::span<const std::string> tokens, TokenId end);
  ~GrammarVocabulary();
  GrammarVocabulary(const GrammarVocabulary&) = delete;
  GrammarVocabulary& operator=(const GrammarVocabulary&) = delete;

  [[nodiscard]] std::size_t size() const { return tokens_.size(); }
  [[nodiscard]] std::size_t mask_words() const {
    return (size() + kMaskWordBits - 1) / kMaskWordBits;
  }
  [[nodiscard]] TokenId end() const { return end_; }
  [[nodiscard]] std::string_view bytes(TokenId token) const { return tokens_[token]; }
  [[nodiscard]] const LlgTokenizer& library() const { return *library_; }

 private:
  GrammarVocabulary() = default;

  struct Free {
    void operator()(LlgTokenizer* tokenizer) const;
  };
  std::vector<std::string> tokens_;
  TokenId end_{};
  std::unique_ptr<LlgTokenizer, Free> library_;
};

class Matcher;

// A compiled grammar. Any thread.
class Grammar final : public recipe::PreparedGrammar {
 public:
  // Takes milliseconds, for a hostile one up to a second. Error kInvalidArgument: what is wrong
  // with it, or which bound it exceeds.
  static Result<std::shared_ptr<const Grammar>> compile(
      std::shared_ptr<const GrammarVocabulary> vocabulary, const recipe::AnswerGrammar& source);
  ~Grammar() override;
  Grammar(const Grammar&) = delete;
  Grammar& operator=(const Grammar&) = delete;

  [[nodiscard]] const GrammarVocabulary& vocabulary() const { return *vocabulary_; }

 private:
  friend class Matcher;
  struct Free {
    void operator()(LlgMatcher* matcher) const;
  };
  using Library = std::unique_ptr<LlgMatcher, Free>;

  Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const recipe::AnswerGrammar& source);
  [[nodiscard]] Result<void> begin(const LlgConstraintInit& init,
                                   const recipe::AnswerGrammar& source,
                                   Library& start) const;

  const std::shared_ptr<const GrammarVocabulary> vocabulary_;  // owners: the cache, every grammar
  const std::vector<TokenId> trigger_;
  const std::vector<std::size_t> fallback_;  // of the trigger: Knuth, Morris and Pratt's table
  const std::string behind_;
  const std::optional<TokenId> bound_;
  const bool guarded_;
  std::vector<MaskWord> free_;  // mask of free text; empty: everything is allowed
  mutable Mutex mutex_;
  Library start_ GALLEY_GUARDED_BY(mutex_);
};

// Where one answer stands in its grammar. One thread at a time.
class Matcher {
 public:
  // At the beginning of an answer.
  [[nodiscard]] static std::unique_ptr<Matcher> begin(std::shared_ptr<const Grammar> grammar);
  ~Matcher() = default;
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;

  // The mask of the next token, mask_words() words. Errors kInternal: nothing may come (a dead
  // end), or it took too much. A matcher that failed fails for ever.
  [[nodiscard]] Result<void> fill(std::span<MaskWord> mask);
  // Whether any token may come, so that no mask is needed.
  [[nodiscard]] bool unrestricted() const;
  // The token that came: one that the mask allows, and not the end. Error kInternal otherwise.
  [[nodiscard]] Result<void> accept(TokenId token);
  // Takes back the last `count` accepted tokens, at most kRollbackMax.
  [[nodiscard]] Result<void> rollback(std::size_t count);
  // Goes its own way from here.
  [[nodiscard]] std::unique_ptr<Matcher> clone() const;
  // Accepted and not taken back.
  [[nodiscard]] std::size_t length() const { return length_; }

 private:
  friend class Grammar;
  enum class Phase : std::uint8_t { kFree, kForced, kGrammar };
  struct State {
    Phase phase{};
    bool behind = false;       // the last token ends as the trigger wants it
    std::uint32_t progress{};  // tokens of the trigger that have come

    friend bool operator==(const State&, const State&) = default;
  };

  Matcher(std::shared_ptr<const Grammar> grammar, Grammar::Library library, State state);
  [[nodiscard]] State next(TokenId token) const;
  [[nodiscard]] Error library_error(std::string_view doing) const;

  const std::shared_ptr<const Grammar> grammar_;  // owners: the cache, its requests and matchers
  Grammar::Library library_;
  State state_;
  std::vector<State> past_;  // before each of the last tokens, oldest first
  std::size_t length_ = 0;
};

}  // namespace galley::engine
