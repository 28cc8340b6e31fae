#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "base/result.h"
#include "engine/grammar.h"
#include "recipe/event.h"
#include "recipe/request.h"
#include "recipe/tokenizer.h"

// Logits -> one token. Pure: the answer depends on the arguments alone, never on the batch, the
// schedule or the number of drafts verified together (design 6, "sampling = exact").
namespace galley::engine {

// How often each token stands in the answer so far: what the penalties count.
using TokenCounts = std::unordered_map<TokenId, std::int32_t>;

// Addresses the noise of one draw.
struct Draw {
  Seed seed;
  std::uint32_t choice{};   // which of the n answers to one request
  std::int64_t position{};  // absolute: of the drawn token in prompt + answer
};

// Standard Gumbel noise of `token` in this draw. With it, argmax(score + noise) is a sample of
// softmax(score); the same draw gives the same noise wherever the token is a candidate.
[[nodiscard]] double gumbel(const Draw& draw, TokenId token);

struct Sampled {
  TokenId token{};
  // Natural logarithms of the model's own probabilities: before penalties, bias, temperature and
  // filters. Filled where the request asks for logprobs; `top` holds the most likely tokens.
  float logprob{};
  std::vector<std::pair<TokenId, float>> top;
};

// In this order: penalties and logit_bias, mask, temperature, top_k, top_p, min_p, noise.
// Temperature 0 takes the largest value. Wherever values are equal the lower token id comes first.
// `mask`: tokens that may be drawn (engine/grammar.h), those beyond its end may not; empty: all
// may. Error: kInternal when a logit is not finite, or no token may be drawn, since nothing could
// be made of it but a wrong token.
[[nodiscard]] Result<Sampled> sample(std::span<const float> logits,
                                     const recipe::Sampling& sampling,
                                     const TokenCounts& counts,
                                     const Draw& draw,
                                     std::span<const MaskWord> mask = {});

// The token that sample() would draw from these logits with the same noise; any token where one of
// them is not finite. For drafts: the better the drafter knows the network, the more often its law
// and the network's give the same token (engine/acceptance.h, exact mode).
[[nodiscard]] TokenId draft_token(std::span<const float> logits,
                                  const recipe::Sampling& sampling,
                                  const TokenCounts& counts,
                                  const Draw& draw);

// As protocols want it.
[[nodiscard]] recipe::TokenLogprob with_text(const Sampled& sampled,
                                             const recipe::Tokenizer& tokenizer);

}  // namespace galley::engine
