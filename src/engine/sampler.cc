#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <fmt/core.h>
#include <limits>
#include <numbers>
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

// False when no token is left.
bool apply(std::span<const MaskWord> mask, std::vector<double>& scores) {
  bool some = false;
  for (std::size_t id = 0; id < scores.size(); ++id) {
    if (allows(mask, static_cast<TokenId>(id))) {
      some = true;
    } else {
      scores[id] = -std::numeric_limits<double>::infinity();
    }
  }
  return some;
}

// The fewest of `ordered`, which is best first, whose exp(score - best) reach `wanted`.
std::vector<TokenId> keep_nucleus(std::span<const double> scores,
                                  double wanted,
                                  std::vector<TokenId> ordered) {
  const double highest = scores[ordered.front()];
  double sum = 0.0;
  std::size_t kept = 0;
  while (kept < ordered.size() && (kept == 0 || sum < wanted)) {
    sum += std::exp(scores[ordered[kept++]] - highest);
  }
  ordered.resize(kept);
  return ordered;
}

// The best tokens that may belong to the fewest whose probabilities reach `top_p`, in order. Those
// left out have less than 1 - top_p together, so only few are put in order.
std::vector<TokenId> nucleus_of_all(std::span<const double> scores, double top_p) {
  const double highest = *std::ranges::max_element(scores);
  double total = 0.0;
  for (const double score : scores) {
    total += std::exp(score - highest);
  }
  const double least =
      highest + std::log((1.0 - top_p) * total / static_cast<double>(scores.size()));
  std::vector<TokenId> ids;
  for (std::size_t id = 0; id < scores.size(); ++id) {
    if (scores[id] >= least || scores[id] == highest) {
      ids.push_back(static_cast<TokenId>(id));
    }
  }
  std::ranges::sort(ids, Before{scores});
  return keep_nucleus(scores, top_p * total, std::move(ids));
}

std::vector<TokenId> nucleus_of_best(std::span<const double> scores, double top_p, int top_k) {
  std::vector<TokenId> ids = best(scores, static_cast<std::size_t>(top_k));
  if (top_p >= 1.0) {
    return ids;
  }
  const double highest = scores[ids.front()];
  double total = 0.0;
  for (const TokenId id : ids) {
    total += std::exp(scores[id] - highest);
  }
  return keep_nucleus(scores, top_p * total, std::move(ids));
}

// Candidates for the draw.
std::vector<TokenId> survivors(std::span<const double> scores, const recipe::Sampling& sampling) {
  const double top_p = sampling.top_p;
  std::vector<TokenId> ids = sampling.top_k ? nucleus_of_best(scores, top_p, *sampling.top_k)
                             : top_p < 1.0  ? nucleus_of_all(scores, top_p)
                                            : all_ids(scores.size());
  if (sampling.min_p > 0.0F) {
    const double least = *std::ranges::max_element(scores) + std::log(double{sampling.min_p});
    std::erase_if(ids, [&](TokenId id) { return scores[id] < least; });
  }
  return ids;
}

// ---- noise

// 52 bits for each of the tokens 2 n and 2 n + 1: a counter block has two 64-bit words.
std::array<std::uint64_t, 2> noise_bits(const Draw& draw, TokenId pair) {
  const RandomBlock block = random_block(draw.seed, static_cast<std::uint64_t>(draw.position),
                                         std::uint64_t{draw.choice} << 32U | pair);
  return {std::uint64_t{block[1]} << 32U | block[0], std::uint64_t{block[3]} << 32U | block[2]};
}

double gumbel_of(std::uint64_t bits) {
  // The middle of one of 2^52 equal intervals: exact, and never 0 or 1.
  const double uniform = (static_cast<double>(bits >> 12U) + 0.5) * 0x1p-52;
  return -std::log(-std::log(uniform));
}

// No less than gumbel_of(bits), for the price of counting: with L leading ones the number is below
// 1 - 2^-(L+1), so its logarithm is beyond -2^-(L+1) and the noise at most (L+1) ln 2.
double gumbel_bound(std::uint64_t bits) {
  constexpr double kRounding = 1e-9;
  return (std::countl_one(bits) + 1) * std::numbers::ln2 + kRounding;
}

// The largest of scores + noise, and the lowest id where several are.
class Winner {
 public:
  Winner(std::span<const double> scores) : scores_(scores) {}

  void offer(TokenId id, std::uint64_t bits) {
    if (scores_[id] + gumbel_bound(bits) < value_) {
      return;  // for nearly all tokens: no logarithm is taken
    }
    const double value = scores_[id] + gumbel_of(bits);
    if (value > value_ || (value == value_ && id < id_)) {
      value_ = value;
      id_ = id;
    }
  }
  [[nodiscard]] TokenId id() const { return id_; }

 private:
  std::span<const double> scores_;
  double value_ = -std::numeric_limits<double>::infinity();
  TokenId id_ = 0;
};

void offer_one(TokenId id, const Draw& draw, Winner& winner) {
  winner.offer(id, noise_bits(draw, id >> 1U)[id % 2]);
}

TokenId choose_of_all(std::span<const double> scores, const Draw& draw) {
  Winner winner(scores);
  // The likeliest first: it rules out most others.
  offer_one(static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin()), draw, winner);
  for (std::size_t id = 0; id < scores.size(); id += 2) {
    const auto bits = noise_bits(draw, static_cast<TokenId>(id >> 1U));
    winner.offer(static_cast<TokenId>(id), bits[0]);
    if (id + 1 < scores.size()) {
      winner.offer(static_cast<TokenId>(id + 1), bits[1]);
    }
  }
  return winner.id();
}

TokenId choose(std::vector<double> scores, const recipe::Sampling& sampling, const Draw& draw) {
  if (sampling.temperature == 0.0F) {
    return static_cast<TokenId>(std::ranges::max_element(scores) - scores.begin());
  }
  for (double& score : scores) {
    score /= double{sampling.temperature};
  }
  if (!sampling.top_k && sampling.top_p >= 1.0F && sampling.min_p == 0.0F) {
    return choose_of_all(scores, draw);
  }
  Winner winner(scores);
  for (const TokenId id : survivors(scores, sampling)) {
    offer_one(id, draw, winner);
  }
  return winner.id();
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
  return gumbel_of(noise_bits(draw, token >> 1U)[token % 2]);
}

Result<Sampled> sample(std::span<const float> logits,
                       const recipe::Sampling& sampling,
                       const TokenCounts& counts,
                       const Draw& draw,
                       std::span<const MaskWord> mask) {
  GALLEY_ASSERT(!logits.empty());
  GALLEY_CHECK_OK(check_finite(logits, draw.position));
  std::vector<double> scores = adjust(logits, sampling, counts);
  if (!mask.empty() && !apply(mask, scores)) {
    return fail(Code::kInternal,
                fmt::format("the answer's grammar allows no token at position {}", draw.position));
  }
  Sampled sampled;
  sampled.token = choose(std::move(scores), sampling, draw);
  if (sampling.logprobs) {
    add_logprobs(logits, static_cast<std::size_t>(sampling.top_logprobs.value_or(0)), sampled);
  }
  return sampled;
}

TokenId draft_token(std::span<const float> logits,
                    const recipe::Sampling& sampling,
                    const TokenCounts& counts,
                    const Draw& draw) {
  GALLEY_ASSERT(!logits.empty());
  if (!check_finite(logits, draw.position)) {
    return 0;
  }
  return choose(adjust(logits, sampling, counts), sampling, draw);
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
