#include "engine/grammar.h"

#include <algorithm>
#include <fmt/core.h>
#include <llguidance.h>
#include <utility>

#include "base/check.h"
#include "base/deep_thread.h"

namespace galley::engine {
namespace {

using recipe::AnswerGrammar;

// What the library says, in one line: its messages point into texts over several.
std::string one_line(std::string_view text) {
  constexpr std::size_t kBytesMax = 400;
  if (text.find("NoExtensionBias") != std::string_view::npos) {
    return "no answer can satisfy it";
  }
  text = text.substr(0, text.find("<non-verbose/>"));
  if (text.size() > kBytesMax) {  // not within a character
    std::size_t end = kBytesMax;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
      --end;
    }
    text = text.substr(0, end);
  }
  std::string out;
  for (const char c : text) {
    if (c != '\n' && c != '\r') {
      out.push_back(c);
    } else if (!out.empty() && out.back() != ' ') {
      out.push_back(' ');
    }
  }
  while (!out.empty() && out.back() == ' ') {
    out.pop_back();
  }
  return out;
}

const char* kind_of(AnswerGrammar::Kind kind) {
  switch (kind) {
    case AnswerGrammar::Kind::kRegex:
      return "regex";
    case AnswerGrammar::Kind::kLark:
      return "lark";
    default:
      return "json_schema";
  }
}

std::vector<std::size_t> fallback_of(std::span<const TokenId> trigger) {
  std::vector<std::size_t> out(trigger.size(), 0);
  for (std::size_t i = 1, k = 0; i < trigger.size(); ++i) {
    while (k > 0 && trigger[i] != trigger[k]) {
      k = out[k - 1];
    }
    k += trigger[i] == trigger[k] ? 1U : 0U;
    out[i] = k;
  }
  return out;
}

void set(std::span<MaskWord> mask, TokenId token, bool allowed) {
  const MaskWord bit = MaskWord{1} << (token % kMaskWordBits);
  MaskWord& word = mask[token / kMaskWordBits];
  word = allowed ? word | bit : word & ~bit;
}

}  // namespace

// ---- vocabulary -----------------------------------------------------------------------------

void GrammarVocabulary::Free::operator()(LlgTokenizer* tokenizer) const {
  llg_free_tokenizer(tokenizer);
}

GrammarVocabulary::~GrammarVocabulary() = default;

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::create(
    const recipe::Tokenizer& tokenizer, TokenId end) {
  std::vector<std::string> tokens;
  tokens.reserve(tokenizer.vocabulary_size());
  for (TokenId id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const std::string_view bytes = tokenizer.bytes(id);
    // An id that stands for nothing is no text either.
    const bool text = !bytes.empty() && !tokenizer.is_added(id);
    tokens.push_back(text            ? std::string(bytes)
                     : bytes.empty() ? fmt::format("\xff<unused {}>", id)
                                     : "\xff" + std::string(bytes));
  }
  return create(tokens, end);
}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarVocabulary::create(
    std::span<const std::string> tokens, TokenId end) {
  GALLEY_ASSERT(end < tokens.size());
  std::vector<std::uint8_t> bytes;
  std::vector<std::uint32_t> lengths;
  for (const std::string& token : tokens) {
    bytes.insert(bytes.end(), token.begin(), token.end());
    lengths.push_back(static_cast<std::uint32_t>(token.size()));
  }
  LlgTokenizerInitV2 init{};
  init.struct_size = sizeof init;
  init.vocab_size = static_cast<std::uint32_t>(tokens.size());
  init.tok_eos = end;
  init.token_lens = lengths.data();
  init.token_bytes = bytes.data();
  // Only forced tokens would be spelled by it, and none are asked for: a model may spell what is
  // forced as it is used to.
  init.use_approximate_greedy_tokenize_fn = true;
  char why[256] = {};
  std::shared_ptr<GrammarVocabulary> out(new GrammarVocabulary());
  out->library_.reset(llg_new_tokenizer_v2(&init, why, sizeof why));
  if (out->library_ == nullptr) {
    return fail(Code::kInvalidArgument, fmt::format("no grammar fits this vocabulary: {}", why),
                "tokenizer");
  }
  out->tokens_.assign(tokens.begin(), tokens.end());
  out->end_ = end;
  return out;
}

// ---- grammar --------------------------------------------------------------------------------

void Grammar::Free::operator()(LlgMatcher* matcher) const {
  llg_free_matcher(matcher);
}

Grammar::Grammar(std::shared_ptr<const GrammarVocabulary> vocabulary, const AnswerGrammar& source)
    : vocabulary_(std::move(vocabulary)),
      trigger_(source.trigger),
      fallback_(fallback_of(trigger_)),
      behind_(source.behind),
      bound_(source.bound),
      guarded_(source.guarded) {
  GALLEY_ASSERT(behind_.empty() || trigger_.size() == 1);
  if (!trigger_.empty() && (guarded_ || !source.forbidden.empty())) {
    free_.assign(vocabulary_->mask_words(), ~MaskWord{0});
    for (std::size_t id = vocabulary_->size(); id < free_.size() * kMaskWordBits; ++id) {
      set(free_, static_cast<TokenId>(id), false);
    }
    for (const TokenId id : source.forbidden) {
      set(free_, id, false);
    }
    if (guarded_) {
      set(free_, trigger_.back(), false);
    }
  }
}

Grammar::~Grammar() = default;

Result<std::shared_ptr<const Grammar>> Grammar::compile(
    std::shared_ptr<const GrammarVocabulary> vocabulary, const AnswerGrammar& source) {
  GALLEY_ASSERT(source.kind != AnswerGrammar::Kind::kNone);
  if (source.text.size() > kGrammarBytesMax) {
    return fail(Code::kInvalidArgument,
                fmt::format("the grammar has {} bytes, {} are the most that are enforced",
                            source.text.size(), kGrammarBytesMax));
  }
  if (source.text.find('\0') != std::string::npos) {
    return fail(Code::kInvalidArgument, "the grammar has a NUL byte");
  }
  LlgConstraintInit init{};
  llg_constraint_init_set_defaults(&init, &vocabulary->library());
  init.log_stderr_level = 0;
  init.log_buffer_level = 0;
  init.limits.max_grammar_size = kGrammarSymbolsMax;
  init.limits.initial_lexer_fuel = kGrammarFuel;
  init.limits.max_lexer_states = kLexerStatesMax;
  init.limits.step_lexer_fuel = kMaskFuel;
  init.limits.step_max_items = kMaskItemsMax;
  init.limits.max_items_in_row = kMaskItemsOfAByteMax;
  init.limits.verbose_errors = false;
  std::shared_ptr<Grammar> out(new Grammar(std::move(vocabulary), source));
  Library start;
  Result<void> done;
  GALLEY_CHECK_OK(run_deep(kCompileStackBytes, [&] { done = out->begin(init, source, start); }));
  GALLEY_CHECK_OK(std::move(done));
  {
    const MutexLock lock(out->mutex_);
    out->start_ = std::move(start);
  }
  return out;
}

// Compiles, goes on behind what was said, and sees whether anything may come at all: an empty
// language shows here, not in the middle of an answer.
Result<void> Grammar::begin(const LlgConstraintInit& init,
                            const AnswerGrammar& source,
                            Library& start) const {
  start.reset(llg_new_matcher(&init, kind_of(source.kind), source.text.c_str()));
  const auto refuse = [&]() -> std::unexpected<Error> {
    const char* const why = start == nullptr ? nullptr : llg_matcher_get_error(start.get());
    return fail(Code::kInvalidArgument,
                why == nullptr ? "the grammar cannot be compiled" : one_line(why));
  };
  if (start == nullptr || llg_matcher_is_error(start.get())) {
    return refuse();
  }
  for (const TokenId token : source.begun) {
    if (llg_matcher_validate_tokens(start.get(), &token, 1) != 1) {
      return fail(Code::kInvalidArgument,
                  "what the answer is to go on from does not fit its grammar");
    }
    if (llg_matcher_consume_token(start.get(), token) != 0) {
      return refuse();
    }
  }
  std::vector<MaskWord> mask(vocabulary_->mask_words());
  if (llg_matcher_compute_mask_into(start.get(), mask.data(), mask.size() * sizeof(MaskWord)) !=
      0) {
    return refuse();
  }
  return {};
}

// ---- matcher --------------------------------------------------------------------------------

std::unique_ptr<Matcher> Matcher::begin(std::shared_ptr<const Grammar> grammar) {
  Grammar::Library library;
  {
    const MutexLock lock(grammar->mutex_);
    library.reset(llg_clone_matcher(grammar->start_.get()));
  }
  const State state{.phase = grammar->trigger_.empty() ? Phase::kGrammar : Phase::kFree,
                    .behind = grammar->behind_.empty()};
  return std::unique_ptr<Matcher>(new Matcher(std::move(grammar), std::move(library), state));
}

Matcher::Matcher(std::shared_ptr<const Grammar> grammar, Grammar::Library library, State state)
    : grammar_(std::move(grammar)), library_(std::move(library)), state_(state) {
  GALLEY_ASSERT(library_ != nullptr);
}

std::unique_ptr<Matcher> Matcher::clone() const {
  std::unique_ptr<Matcher> out(
      new Matcher(grammar_, Grammar::Library(llg_clone_matcher(library_.get())), state_));
  out->past_ = past_;
  out->length_ = length_;
  return out;
}

Error Matcher::library_error(std::string_view doing) const {
  const char* const why = llg_matcher_get_error(library_.get());
  return {.code = Code::kInternal,
          .what = fmt::format("the answer's grammar failed {}: {}", doing,
                              one_line(why == nullptr ? "no reason is given" : why))};
}

bool Matcher::unrestricted() const {
  return state_.phase == Phase::kFree && grammar_->free_.empty();
}

Result<void> Matcher::fill(std::span<MaskWord> mask) {
  const Grammar& grammar = *grammar_;
  GALLEY_ASSERT(mask.size() == grammar.vocabulary_->mask_words());
  switch (state_.phase) {
    case Phase::kFree:
      if (grammar.free_.empty()) {
        std::ranges::fill(mask, ~MaskWord{0});
        return {};
      }
      std::ranges::copy(grammar.free_, mask.begin());
      if (grammar.guarded_ && state_.progress + 1 == grammar.trigger_.size() && state_.behind) {
        set(mask, grammar.trigger_.back(), true);
      }
      return {};
    case Phase::kForced:
      std::ranges::fill(mask, MaskWord{0});
      set(mask, grammar.trigger_[state_.progress], true);
      return {};
    case Phase::kGrammar:
      break;
  }
  if (llg_matcher_compute_mask_into(library_.get(), mask.data(), mask.size_bytes()) != 0) {
    return std::unexpected(library_error("to say what may come"));
  }
  if (std::ranges::all_of(mask, [](MaskWord word) { return word == 0; })) {
    return fail(Code::kInternal, "the answer's grammar is at a dead end: no token fits");
  }
  return {};
}

Matcher::State Matcher::next(TokenId token) const {
  const Grammar& grammar = *grammar_;
  State out = state_;
  out.behind =
      grammar.behind_.empty() || (token < grammar.vocabulary_->size() &&
                                  grammar.vocabulary_->bytes(token).ends_with(grammar.behind_));
  std::size_t progress = state_.progress;
  if (state_.phase == Phase::kFree) {
    while (progress > 0 && grammar.trigger_[progress] != token) {
      progress = grammar.fallback_[progress - 1];
    }
    if (grammar.trigger_[progress] == token && state_.behind) {
      ++progress;
    }
    // A bound token that is the trigger itself begins the grammar, like any trigger.
    if (progress < grammar.trigger_.size() && token == grammar.bound_) {
      out.phase = Phase::kForced;
      progress = 0;
    }
  } else {
    ++progress;
  }
  if (progress == grammar.trigger_.size()) {
    out.phase = Phase::kGrammar;
  }
  out.progress = static_cast<std::uint32_t>(progress);
  return out;
}

Result<void> Matcher::accept(TokenId token) {
  if (state_.phase == Phase::kForced && token != grammar_->trigger_[state_.progress]) {
    return fail(Code::kInternal, fmt::format("token {} came where the answer's grammar wants {}",
                                             token, grammar_->trigger_[state_.progress]));
  }
  if (state_.phase == Phase::kGrammar) {
    if (llg_matcher_consume_token(library_.get(), token) != 0) {
      return std::unexpected(library_error(fmt::format("at token {}", token)));
    }
  }
  if (past_.size() == 2 * kRollbackMax) {
    past_.erase(past_.begin(), past_.begin() + kRollbackMax);
  }
  past_.push_back(state_);
  if (state_.phase != Phase::kGrammar) {
    state_ = next(token);
  }
  ++length_;
  return {};
}

Result<void> Matcher::rollback(std::size_t count) {
  GALLEY_ASSERT(count <= past_.size());
  if (count == 0) {
    return {};
  }
  const auto first = past_.end() - static_cast<std::ptrdiff_t>(count);
  const auto consumed = std::count_if(
      first, past_.end(), [](const State& state) { return state.phase == Phase::kGrammar; });
  state_ = *first;
  past_.erase(first, past_.end());
  length_ -= count;
  if (consumed > 0 &&
      llg_matcher_rollback(library_.get(), static_cast<std::size_t>(consumed)) != 0) {
    return std::unexpected(library_error("to go back"));
  }
  return {};
}

}  // namespace galley::engine
