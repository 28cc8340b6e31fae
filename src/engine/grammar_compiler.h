#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

#include "base/mutex.h"
#include "base/result.h"
#include "cache/sha256.h"
#include "engine/grammar.h"
#include "recipe/token_source.h"
#include "recipe/tokenizer.h"

namespace galley::engine {

// Compiled grammars that are kept for the next request with the same one, the latest ones. Few need
// more than a megabyte; the most that one takes follows from kLexerStatesMax.
inline constexpr std::size_t kGrammarsKept = 32;

// Grammars of one vocabulary. Any thread; whoever calls waits for the compiling.
class GrammarCompiler {
 public:
  explicit GrammarCompiler(std::shared_ptr<const recipe::Tokenizer> tokenizer);

  // Null where the generation has no grammar; what was prepared, where it was. Errors as
  // Grammar::compile(), `where` is the request's member that asked for it.
  [[nodiscard]] Result<std::shared_ptr<const Grammar>> grammar_of(
      const recipe::Generation& generation) GALLEY_EXCLUDES(mutex_);

  struct Stats {
    std::uint64_t compiled{};
    std::uint64_t found{};  // kept from an earlier request
  };
  [[nodiscard]] Stats stats() const GALLEY_EXCLUDES(mutex_);

 private:
  struct Kept {
    cache::Sha256Digest key;  // of all of a source
    std::shared_ptr<const Grammar> grammar;
  };
  [[nodiscard]] Result<std::shared_ptr<const GrammarVocabulary>> vocabulary()
      GALLEY_EXCLUDES(vocabulary_mutex_);

  const std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the codec
  // Made when the first grammar comes, which takes a third of a second at 130,000 tokens.
  Mutex vocabulary_mutex_;
  std::shared_ptr<const GrammarVocabulary> vocabulary_ GALLEY_GUARDED_BY(vocabulary_mutex_);
  mutable Mutex mutex_;
  std::list<Kept> kept_ GALLEY_GUARDED_BY(mutex_);  // the latest first
  std::map<cache::Sha256Digest, std::list<Kept>::iterator> places_ GALLEY_GUARDED_BY(mutex_);
  Stats stats_ GALLEY_GUARDED_BY(mutex_);
};

}  // namespace galley::engine
