#pragma once

#include <span>

#include "recipe/token_source.h"

namespace galley::gateway {

// Hands `ids` to `sink`, a token a step, as far as max_tokens and the stop ids of `generation`
// allow, then finishes: with kLength when max_tokens cut it, with kStop at a stop id, else with
// `reason`.
inline void deliver(std::span<const TokenId> ids,
                    const recipe::Generation& generation,
                    recipe::SourceFinish reason,
                    recipe::TokenSink& sink) {
  std::int64_t left = generation.max_tokens;
  for (const TokenId& id : ids) {
    for (const TokenId stop : generation.stop_ids) {
      if (id == stop) {
        return sink.on_finish(recipe::SourceFinish::kStop);
      }
    }
    if (left-- == 0) {
      return sink.on_finish(recipe::SourceFinish::kLength);
    }
    sink.on_tokens({&id, 1}, {});
  }
  sink.on_finish(reason);
}

}  // namespace galley::gateway
