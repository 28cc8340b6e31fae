// Goal: the sampler draws from exactly the distribution the request describes, reproducibly.
// Method: small vocabularies with known probabilities; counts over many positions.
#include "engine/sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <numeric>
#include <set>
#include <vector>

#include "base/random.h"

namespace galley::engine {
namespace {

constexpr Draw kDraw{.seed = Seed(7), .choice = 0, .position = 11};

TokenId token(std::span<const float> logits,
              const recipe::Sampling& sampling,
              const Draw& draw = kDraw,
              const TokenCounts& counts = {}) {
  const auto sampled = sample(logits, sampling, counts, draw);
  EXPECT_TRUE(sampled) << to_string(sampled.error());
  return sampled->token;
}

std::vector<int> histogram(std::span<const float> logits,
                           const recipe::Sampling& sampling,
                           int draws,
                           std::uint32_t choice = 0) {
  std::vector<int> seen(logits.size());
  for (int position = 0; position < draws; ++position) {
    ++seen[token(logits, sampling, {.seed = Seed(3), .choice = choice, .position = position})];
  }
  return seen;
}

TEST(Sampler, GreedyTakesTheLargestAndTheLowerIdOfEqualOnes) {
  const std::array logits{1.0F, 4.0F, 4.0F, 3.0F};
  EXPECT_EQ(token(logits, {.temperature = 0.0F}), 1U);
}

TEST(Sampler, FrequenciesAreTheSoftmaxAtTheTemperature) {
  constexpr int kDraws = 20'000;
  const std::array logits{0.0F, 1.0F, 2.0F, -1.0F};
  for (const float temperature : {0.5F, 1.0F, 2.0F}) {
    const auto seen = histogram(logits, {.temperature = temperature}, kDraws);
    double total = 0.0;
    for (const float logit : logits) {
      total += std::exp(logit / temperature);
    }
    for (std::size_t id = 0; id < logits.size(); ++id) {
      const double p = std::exp(logits[id] / temperature) / total;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(seen[id], p * kDraws, 5 * std::sqrt(kDraws * p * (1 - p))) << id;
    }
  }
}

TEST(Sampler, TheSameDrawGivesTheSameTokenAndAnyOtherIsIndependent) {
  std::vector<float> logits(1000, 0.0F);
  const auto at = [&](std::uint64_t seed, std::uint32_t choice, std::int64_t position) {
    return token(logits, {}, {.seed = Seed(seed), .choice = choice, .position = position});
  };
  EXPECT_EQ(at(1, 2, 3), at(1, 2, 3));
  const std::set<TokenId> others{at(1, 2, 3), at(2, 2, 3), at(1, 3, 3), at(1, 2, 4), at(1, 4, 2)};
  EXPECT_EQ(others.size(), 5U);
}

// What makes drafts harmless: a token that is a candidate twice has the same noise twice.
TEST(Sampler, NoiseOfATokenDoesNotDependOnTheOtherCandidates) {
  for (int position = 0; position < 200; ++position) {
    const Draw draw{.seed = Seed(5), .choice = 1, .position = position};
    const std::array all{0.3F, 0.2F, 0.1F, 0.0F};
    const TokenId full = token(all, {}, draw);
    const TokenId top2 = token(all, {.top_k = 2}, draw);
    if (full < 2) {
      EXPECT_EQ(top2, full);
    }
    EXPECT_LT(top2, 2U);
  }
}

TEST(Sampler, EveryTokenHasNoiseOfItsOwn) {
  std::set<double> seen;
  for (TokenId id = 0; id < 4000; ++id) {
    const double noise = gumbel(kDraw, id);
    EXPECT_TRUE(std::isfinite(noise));
    seen.insert(noise);
  }
  EXPECT_EQ(seen.size(), 4000U);
}

TEST(Sampler, TopKKeepsTheBestAndTheLowerIdsOfEqualOnes) {
  const std::array logits{1.0F, 2.0F, 1.0F, 1.0F};
  const auto seen = histogram(logits, {.top_k = 2}, 500);
  EXPECT_GT(seen[0], 0);
  EXPECT_GT(seen[1], 0);
  EXPECT_EQ(seen[2] + seen[3], 0);
}

TEST(Sampler, TopPKeepsTheFewestTokensThatReachIt) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::array logits{std::log(4.0F), std::log(2.0F), 0.0F, 0.0F};
  const auto kept = [&](float top_p) {
    std::set<std::size_t> ids;
    const auto seen = histogram(logits, {.top_p = top_p}, 1000);
    for (std::size_t id = 0; id < seen.size(); ++id) {
      if (seen[id] > 0) {
        ids.insert(id);
      }
    }
    return ids;
  };
  using Ids = std::set<std::size_t>;
  EXPECT_EQ(kept(0.0F), (Ids{0}));
  EXPECT_EQ(kept(0.4F), (Ids{0}));
  EXPECT_EQ(kept(0.6F), (Ids{0, 1}));
  EXPECT_EQ(kept(0.8F), (Ids{0, 1, 2}));
  EXPECT_EQ(kept(0.95F), (Ids{0, 1, 2, 3}));
}

// 0.6 of what top_k left: one token, where 0.6 of everything would be two.
TEST(Sampler, TopPCountsWhatTopKLeft) {
  const std::array logits{std::log(6.0F), std::log(2.0F), std::log(2.0F), std::log(2.0F)};
  const auto seen = histogram(logits, {.top_p = 0.6F, .top_k = 2}, 300);
  EXPECT_EQ(seen[0], 300);
}

TEST(Sampler, MinPDropsWhatIsFarBelowTheBest) {
  // Shares of the likeliest: 1, 0.5, 0.25, 0.1.
  const std::array logits{std::log(4.0F), std::log(2.0F), 0.0F, std::log(0.4F)};
  const auto kept = [&](recipe::Sampling sampling) {
    const auto seen = histogram(logits, sampling, 2000);
    return std::ranges::count_if(seen, [](int count) { return count > 0; });
  };
  EXPECT_EQ(kept({.min_p = 0.0F}), 4);
  EXPECT_EQ(kept({.min_p = 0.2F}), 3);
  EXPECT_EQ(kept({.min_p = 0.4F}), 2);
  EXPECT_EQ(kept({.min_p = 1.0F}), 1);
  EXPECT_EQ(kept({.top_k = 2, .min_p = 0.2F}), 2);
  EXPECT_EQ(kept({.top_p = 0.99F, .min_p = 0.4F}), 2);
}

std::vector<float> random_logits(std::size_t count, float spread, std::uint64_t seed) {
  Random random(Seed(seed), 0);
  std::vector<float> logits(count);
  for (float& logit : logits) {
    // The sum of three: a few stand out, as a model's do. Some are equal.
    logit = std::round(spread * 16 *
                       (random.next_float() + random.next_float() + random.next_float())) /
            16;
  }
  return logits;
}

// Most tokens are ruled out without their noise being computed; the winner is the one that
// computing all of it finds.
TEST(Sampler, TheWinnerIsTheLargestOfAll) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto logits = random_logits(1 + seed * 71, static_cast<float>(seed % 12), seed);
    const Draw draw{.seed = Seed(seed), .choice = 2, .position = 7};
    TokenId winner = 0;
    double most = -std::numeric_limits<double>::infinity();
    for (TokenId id = 0; id < logits.size(); ++id) {
      const double value = double{logits[id]} / 0.75 + gumbel(draw, id);
      if (value > most) {
        most = value;
        winner = id;
      }
    }
    EXPECT_EQ(token(logits, {.temperature = 0.75F}, draw), winner) << seed;
  }
}

// Against putting all tokens in order.
TEST(Sampler, TheNucleusIsThatOfAllTokens) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const auto logits = random_logits(900, static_cast<float>(1 + seed % 9), seed);
    std::vector<TokenId> ordered(logits.size());
    std::iota(ordered.begin(), ordered.end(), TokenId{0});
    std::ranges::stable_sort(ordered, [&](TokenId a, TokenId b) { return logits[a] > logits[b]; });
    double total = 0.0;
    for (const float logit : logits) {
      total += std::exp(double{logit});
    }
    for (const float top_p : {0.02F, 0.5F, 0.9F, 0.99F}) {
      std::set<TokenId> nucleus;
      double sum = 0.0;
      for (std::size_t i = 0; i < ordered.size() && sum < double{top_p} * total; ++i) {
        nucleus.insert(ordered[i]);
        sum += std::exp(double{logits[ordered[i]]});
      }
      const Draw draw{.seed = Seed(seed), .choice = 1, .position = 3};
      TokenId winner = ordered.front();
      for (const TokenId id : nucleus) {
        const auto value = [&](TokenId one) { return double{logits[one]} + gumbel(draw, one); };
        if (value(id) > value(winner)) {
          winner = id;
        }
      }
      EXPECT_EQ(token(logits, {.top_p = top_p}, draw), winner) << seed << " " << top_p;
    }
  }
}

TEST(Sampler, PenaltiesAndBiasMoveTheScores) {
  const std::array logits{2.0F, 1.5F, 1.0F};
  const recipe::Sampling greedy{.temperature = 0.0F};
  recipe::Sampling presence = greedy;
  presence.presence_penalty = 0.6F;
  recipe::Sampling frequency = greedy;
  frequency.frequency_penalty = 0.3F;
  recipe::Sampling bias = greedy;
  bias.logit_bias = {{2, 1.5F}, {0, -1.0F}};
  EXPECT_EQ(token(logits, presence, kDraw, {{0, 1}}), 1U);
  EXPECT_EQ(token(logits, presence, kDraw, {{0, 9}, {1, 1}}), 0U);
  EXPECT_EQ(token(logits, frequency, kDraw, {{0, 1}}), 0U);
  EXPECT_EQ(token(logits, frequency, kDraw, {{0, 2}}), 1U);
  EXPECT_EQ(token(logits, bias), 2U);
}

TEST(Sampler, LogprobsAreTheModelsOwn) {
  const std::array logits{std::log(4.0F), std::log(2.0F), std::log(2.0F)};
  recipe::Sampling sampling{.temperature = 0.0F, .logprobs = true, .top_logprobs = 2};
  sampling.logit_bias = {{2, 50.0F}};
  const auto sampled = sample(logits, sampling, {}, kDraw);
  ASSERT_TRUE(sampled);
  EXPECT_EQ(sampled->token, 2U);
  EXPECT_NEAR(sampled->logprob, std::log(0.25), 1e-6);
  ASSERT_EQ(sampled->top.size(), 2U);
  EXPECT_EQ(sampled->top[0].first, 0U);
  EXPECT_NEAR(sampled->top[0].second, std::log(0.5), 1e-6);
  EXPECT_EQ(sampled->top[1].first, 1U);
  EXPECT_TRUE(sample(logits, {.temperature = 0.0F}, {}, kDraw)->top.empty());
}

TEST(Sampler, ALogitThatIsNotFiniteIsAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    const std::array logits{1.0F, bad, 2.0F};
    const auto sampled = sample(logits, {}, {}, kDraw);
    ASSERT_FALSE(sampled);
    EXPECT_EQ(sampled.error().code, Code::kInternal);
    EXPECT_NE(sampled.error().what.find("token 1 at position 11"), std::string::npos);
  }
}

// The law of what a mask leaves, with the same noise: filters see only that.
TEST(Sampler, AMaskLeavesTheOthersAsTheyWere) {
  constexpr std::size_t kTokens = 70;
  std::vector<float> logits(kTokens);
  Random random(Seed(4), 0);
  for (float& logit : logits) {
    logit = static_cast<float>(4 * random.next_float());
  }
  const std::array<recipe::Sampling, 5> settings{{{.temperature = 0.0F},
                                                  {.temperature = 0.7F},
                                                  {.top_p = 0.6F},
                                                  {.top_k = 3},
                                                  {.top_p = 0.9F, .top_k = 50, .min_p = 0.05F}}};
  for (int round = 0; round < 200; ++round) {
    // Of 64 bits: token 64 and all beyond may not come.
    std::array<MaskWord, 2> mask{};
    std::vector<TokenId> left;
    for (TokenId id = 0; id < 64; ++id) {
      if (random.next_below(8) == 0 || (round % 2 == 0 && id == 63)) {
        mask[id / 32] |= MaskWord{1} << (id % 32);
        left.push_back(id);
      }
    }
    if (left.empty()) {
      continue;
    }
    std::vector<float> alone;
    for (const TokenId id : left) {
      alone.push_back(logits[id]);
    }
    const Draw draw{.seed = Seed(5), .choice = 0, .position = round};
    for (const recipe::Sampling& sampling : settings) {
      const auto sampled = sample(logits, sampling, {}, draw, mask);
      ASSERT_TRUE(sampled) << to_string(sampled.error());
      ASSERT_TRUE(allows(mask, sampled->token));
      if (sampling.temperature == 0.0F) {
        EXPECT_EQ(sampled->token, left[token(alone, sampling, draw)]);
      }
      if (!sampling.top_k && sampling.top_p == 1.0F && sampling.temperature > 0.0F) {
        const auto best = std::ranges::max_element(left, {}, [&](TokenId id) {
          return logits[id] / double{sampling.temperature} + gumbel(draw, id);
        });
        EXPECT_EQ(sampled->token, *best);
      }
    }
  }
  const std::array<MaskWord, 2> nothing{};
  const auto sampled = sample(logits, {}, {}, kDraw, nothing);
  ASSERT_FALSE(sampled);
  EXPECT_EQ(sampled.error().code, Code::kInternal);
}

}  // namespace
}  // namespace galley::engine
