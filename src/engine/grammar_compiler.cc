#include "engine/grammar_compiler.h"

#include <fmt/core.h>
#include <string>
#include <utility>

#include "recipe/control.h"

namespace galley::engine {
namespace {

using recipe::AnswerGrammar;

void add_tokens(const std::vector<TokenId>& tokens, std::string& out) {
  for (const TokenId token : tokens) {
    fmt::format_to(std::back_inserter(out), "{} ", token);
  }
  out.push_back(';');
}

cache::Sha256Digest key_of(const AnswerGrammar& source) {
  // Numbers and bytes first: the texts cannot be mistaken for them.
  std::string head = fmt::format("{} {} {} ", static_cast<int>(source.kind), source.guarded,
                                 source.bound ? std::to_string(*source.bound) : "-");
  add_tokens(source.trigger, head);
  add_tokens(source.forbidden, head);
  add_tokens(source.begun, head);
  return cache::sha256(
      fmt::format("{}{} {}{}", head, source.behind.size(), source.behind, source.text));
}

}  // namespace

GrammarCompiler::GrammarCompiler(std::shared_ptr<const recipe::Tokenizer> tokenizer)
    : tokenizer_(std::move(tokenizer)) {}

Result<std::shared_ptr<const GrammarVocabulary>> GrammarCompiler::vocabulary() {
  const MutexLock lock(vocabulary_mutex_);
  if (vocabulary_ == nullptr) {
    const auto end = tokenizer_->find_added(recipe::spelling(recipe::Control::kEos));
    if (!end) {
      return fail(Code::kUnimplemented, "the vocabulary has no token that ends an answer");
    }
    GALLEY_TRY(vocabulary_, GrammarVocabulary::create(*tokenizer_, *end));
  }
  return vocabulary_;
}

Result<std::shared_ptr<const Grammar>> GrammarCompiler::grammar_of(
    const recipe::Generation& generation) {
  const AnswerGrammar& source = generation.grammar;
  if (source.kind == AnswerGrammar::Kind::kNone) {
    return std::shared_ptr<const Grammar>();
  }
  if (auto prepared = std::dynamic_pointer_cast<const Grammar>(generation.prepared)) {
    return prepared;
  }
  const cache::Sha256Digest key = key_of(source);
  {
    const MutexLock lock(mutex_);
    if (const auto found = places_.find(key); found != places_.end()) {
      kept_.splice(kept_.begin(), kept_, found->second);
      ++stats_.found;
      return found->second->grammar;
    }
  }
  const auto where = [&](Error error) {
    error.where = source.place;
    return std::unexpected(std::move(error));
  };
  auto of = vocabulary();
  if (!of) {
    return where(std::move(of).error());
  }
  auto grammar = Grammar::compile(*std::move(of), source);
  const MutexLock lock(mutex_);
  ++stats_.compiled;
  if (!grammar) {
    return where(std::move(grammar).error());
  }
  if (!places_.contains(key)) {
    kept_.push_front({.key = key, .grammar = *grammar});
    places_.emplace(key, kept_.begin());
    if (kept_.size() > kGrammarsKept) {
      places_.erase(kept_.back().key);
      kept_.pop_back();
    }
  }
  return grammar;
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
  const MutexLock lock(mutex_);
  return stats_;
}

}  // namespace galley::engine
