#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <fmt/core.h>
#include <numeric>

#include "base/check.h"

namespace galley::engine {
namespace {

Result<void> check_finite(std::span<const float> logits, std::int64_t position) {
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      return fail(Code::kInternal, fmt::format("the model gave {} for token {} at position {}",
                                               logits[id], id, position));
    }
  }
  return {};
}

// Highest value first, then lowest id.
struct Before {
  std::span<const double> values;
  bool operator()(TokenId a, TokenId b) const {
    return values[a] != values[b] ? values[a] > values[b] : a < b;
  }
};

std::vector<TokenId> all_ids(std::size_t count) {
  std::vector<TokenId> ids(count);
  std::iota(ids.begin(), ids.end(), TokenId{0});
  return ids;
}

// The `count` best ids, in order.
std::vector<TokenId> best(std::span<const double> values, std::size_t count) {
  std::vector<TokenId> ids = all_ids(values.size());
  count = std::min(count, ids.size());
  std::ranges::partial_sort(ids, ids.begin() + static_cast<std::ptrdiff_t>(count), Before{values});
  ids.resize(count);
  return ids;
}

// Logits with penalties and bias.
std::vector<double> adjust(std::span<const float> logits,
                           const recipe::Sampling& sampling,
                           const TokenCounts& counts) {
  std::vector<double> scores(logits.begin(), logits.end());
  for (const auto& [id, count] : counts) {
    scores[id] -= double{sampling.presence_penalty} + double{sampling.frequency_penalty} * count;
  }
  for (const auto& [id, bias] : sampling.logit_bias) {
    scores[id] += double{bias};
  }
  return scores;
}

// The fewest of the best tokens whose probabilities reach `top_p`; `ordered` is best first.
void keep_nucleus(std::span<const double> scores, double top_p, std::vector<TokenId>& ordered) {
  const double highest = scores[ordered.front()];
  double total = 0.0;
  for (const TokenId id : ordered) {
    total += std::exp(scores[id] - highest);
  }
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < ordered.size() && (kept == 0 || sum < top_p * total)) {
    sum += std::exp(scores[ordered[kept++]] - highest);
  }
  ordered.resize(kept);
}

std::vector<TokenId> survivors(std::span<const double> scores, const recipe::Sampling& sampling) {
  const bool nucleus = sampling.top_p < 1.0F;
  if (!sampling.top_k && !nucleus) {
    return all_ids(scores.size());
  }
  std::vector<TokenId> ordered =
      best(scores, sampling.top_k ? static_cast<std::size_t>(*sampling.top_k) : scores.size());
  if (nucleus) {
    keep_nucleus(scores, double{sampling.top_p}, ordered);
  }
  return ordered;
}

TokenId choose(std::vector<double> scores, const recipe::Sampling& sampling, const Draw& draw) {
  if (sampling.temperature == 0.0F) {
    return static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin());
  }
  for (double& score : scores) {
    score /= double{sampling.temperature};
  }
  std::vector<TokenId> candidates = survivors(scores, sampling);
  for (const TokenId id : candidates) {
    scores[id] += gumbel(draw, id);
  }
  return *std::ranges::min_element(candidates, Before{scores});
}

void add_logprobs(std::span<const float> logits, std::size_t top, Sampled& sampled) {
  const std::vector<double> values(logits.begin(), logits.end());
  const double highest = *std::ranges::max_element(values);
  double total = 0.0;
  for (const double value : values) {
    total += std::exp(value - highest);
  }
  const double norm = highest + std::log(total);
  sampled.logprob = static_cast<float>(values[sampled.token] - norm);
  for (const TokenId id : best(values, top)) {
    sampled.top.emplace_back(id, static_cast<float>(values[id] - norm));
  }
}

}  // namespace

double gumbel(const Draw& draw, TokenId token) {
  // A counter block has two 64-bit words, hence serves two tokens.
  const RandomBlock block = random_block(draw.seed, static_cast<std::uint64_t>(draw.position),
                                         std::uint64_t{draw.choice} << 32U | token >> 1U);
  const std::size_t word = token % 2 == 0 ? 0 : 2;
  const std::uint64_t bits = std::uint64_t{block[word + 1]} << 32U | block[word];
  // The middle of one of 2^52 equal intervals: exact, and never 0 or 1.
  const double uniform = (static_cast<double>(bits >> 12U) + 0.5) * 0x1p-52;
  return -std::log(-std::log(uniform));
}

Result<Sampled> sample(std::span<const float> logits,
                       const recipe::Sampling& sampling,
                       const TokenCounts& counts,
                       const Draw& draw) {
  GALLEY_ASSERT(!logits.empty());
  GALLEY_CHECK_OK(check_finite(logits, draw.position));
  Sampled sampled;
  sampled.token = choose(adjust(logits, sampling, counts), sampling, draw);
  if (sampling.logprobs) {
    add_logprobs(logits, static_cast<std::size_t>(sampling.top_logprobs.value_or(0)), sampled);
  }
  return sampled;
}

recipe::TokenLogprob with_text(const Sampled& sampled, const recipe::Tokenizer& tokenizer) {
  recipe::TokenLogprob out{.token = std::string(tokenizer.bytes(sampled.token)),
                           .logprob = sampled.logprob};
  for (const auto& [id, logprob] : sampled.top) {
    out.top.push_back({.token = std::string(tokenizer.bytes(id)), .logprob = logprob});
  }
  return out;
}

}  // namespace galley::engine
