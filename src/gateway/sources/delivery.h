#pragma once

#include <cstddef>
#include <memory>
#include <variant>
#include <vector>

#include "base/loop.h"
#include "recipe/token_source.h"

namespace galley::gateway {

// An answer that is known in full before it is delivered.
struct KnownAnswer {
  recipe::Started started;
  std::vector<TokenId> ids;
  std::variant<recipe::SourceFinish, Error> end = recipe::SourceFinish::kStop;
};

// Steps that one task of the loop delivers, so that a long answer holds up no other.
inline constexpr std::size_t kStepsPerTask = 256;

// `answer` as far as max_tokens and the stop ids of `generation` allow: kLength when max_tokens cut
// it, kStop at a stop id. An answer that ends in an error is broken, so nothing else ends it.
[[nodiscard]] KnownAnswer limited(KnownAnswer answer, const recipe::Generation& generation);

// Hands `answer` to `sink` on `loop`, a token a step. Both must outlive what is returned.
[[nodiscard]] std::unique_ptr<recipe::ActiveGeneration> deliver(Loop& loop,
                                                                KnownAnswer answer,
                                                                recipe::TokenSink& sink);

}  // namespace galley::gateway
