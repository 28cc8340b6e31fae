#pragma once

#include <cstddef>

#include "base/result.h"
#include "base/units.h"
#include "recipe/token_source.h"

// Whether a generation whose engine failed is asked for again. Pure.
namespace galley::gateway {

// What has become of a generation so far.
struct Attempts {
  std::size_t made = 0;       // requests that were sent
  std::size_t fruitless = 0;  // of these the last ones, none of which brought a token
};

inline constexpr std::size_t kAttemptsMax = 16;
inline constexpr std::size_t kFruitlessMax = 4;

// Whether `delivered` tokens can be gone on from so that the answer is drawn as if nothing had
// happened. True at the beginning. Behind it, whatever an engine keeps beside the tokens is lost:
// the place in the noise of a `seed` (of a greedy answer nothing depends on it), which tokens are
// the answer's for penalties, the state of a grammar.
[[nodiscard]] bool can_go_on(const recipe::Generation& generation, std::size_t delivered);

// Whether an attempt that ended with `code` is made again. What the engine refuses, it would refuse
// again; of an engine with too much to do the client is told.
[[nodiscard]] bool tries_again(Code code, const Attempts& attempts);

// How long to wait before the next attempt.
[[nodiscard]] Duration wait_before(const Attempts& attempts);

}  // namespace galley::gateway
