#pragma once

#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/grammar.h"

namespace galley::plan {

// Of the hash model where answers have grammars: what JSON is made of, its end the model's stop
// token.
inline constexpr TokenId kGrammarVocabulary = 256;

// Random JSON-like grammars over it, made once a process from fixed seeds: a third begins at once,
// a third behind a trigger, a third behind a trigger that a bound token forces.
[[nodiscard]] const std::vector<std::shared_ptr<const engine::Grammar>>& grammar_pool();

}  // namespace galley::plan
