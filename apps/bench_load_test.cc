// Goal: the load is the one asked for and repeats, and the figures are those of the times. Method:
// small loads; hand-made times.
#include "apps/bench_load.h"

#include <algorithm>
#include <chrono>
#include <gtest/gtest.h>
#include <numeric>
#include <set>

#include "recipe/tokenizer_for_test.h"

namespace galley::apps {
namespace {

using namespace std::chrono_literals;

TEST(BenchLoad, PromptsShareWhatTheyShould) {
  const auto tokenizer = recipe::small_tokenizer_for_test(GALLEY_TESTS_DIR).value();
  const SyntheticLoad load{
      .requests = 3, .prompt_tokens = 40, .shared_tokens = 30, .seed = Seed(7)};
  const auto prompts = synthetic_prompts(load, *tokenizer);
  ASSERT_EQ(prompts.size(), 3U);
  EXPECT_EQ(prompts, synthetic_prompts(load, *tokenizer));
  const std::vector<TokenId> begin(prompts[0].begin(), prompts[0].begin() + 30);
  for (const auto& prompt : prompts) {
    ASSERT_EQ(prompt.size(), 40U);
    EXPECT_TRUE(std::equal(begin.begin(), begin.end(), prompt.begin()));
    for (const TokenId id : prompt) {
      EXPECT_FALSE(tokenizer->is_added(id));
    }
  }
  EXPECT_NE(prompts[0], prompts[1]);
  // More is shared than there is: all of it.
  const auto equal = synthetic_prompts(
      {.requests = 2, .prompt_tokens = 5, .shared_tokens = 9, .seed = Seed(7)}, *tokenizer);
  EXPECT_EQ(equal[0], equal[1]);
  EXPECT_EQ(equal[0].size(), 5U);
}

TEST(BenchLoad, ArrivalsHaveTheirRate) {
  const auto times = arrivals(20'000, 50.0, Seed(3));
  EXPECT_EQ(times.front(), Duration(0));
  EXPECT_TRUE(std::ranges::is_sorted(times));
  // 400 s; a Poisson process of 20,000 is within 0.7 % with probability 0.68.
  EXPECT_NEAR(std::chrono::duration<double>(times.back()).count(), 400.0, 12.0);
}

TEST(BenchLoad, PercentilesAreNearestRank) {
  std::vector<double> values(100);
  std::iota(values.rbegin(), values.rend(), 1.0);
  const Spread of_hundred = spread(values);
  EXPECT_EQ(of_hundred.mean, 50.5);
  EXPECT_EQ(of_hundred.p50, 50.0);
  EXPECT_EQ(of_hundred.p90, 90.0);
  EXPECT_EQ(of_hundred.p99, 99.0);
  EXPECT_EQ(spread({4.0}).p50, 4.0);
  EXPECT_EQ(spread({4.0}).p99, 4.0);
  EXPECT_EQ(spread({}).mean, 0.0);
}

TEST(BenchLoad, FiguresAreThoseOfTheTimes) {
  const BenchFigures made =
      figures({{.prompt_tokens = 100,
                .cached_tokens = 60,
                .answer_tokens = 5,
                .first = 20ms,
                .whole = 60ms,
                .gaps = {10ms, 30ms}},
               {.prompt_tokens = 50, .answer_tokens = 1, .first = 40ms, .whole = 40ms},
               {.prompt_tokens = 7, .error = "broken"}},
              2s);
  EXPECT_EQ(made.done, 2U);
  EXPECT_EQ(made.failed, 1U);
  EXPECT_EQ(made.error, "broken");
  EXPECT_EQ(made.prompt_tokens, 157);
  EXPECT_EQ(made.cached_tokens, 60);
  EXPECT_EQ(made.answer_tokens, 6);
  EXPECT_EQ(made.first_ms.mean, 30.0);
  EXPECT_EQ(made.gap_ms.p99, 30.0);
  EXPECT_EQ(made.per_token_ms.mean, 10.0);  // of the one with more than one token
  EXPECT_EQ(made.whole_ms.p50, 40.0);
  const std::string table = bench_table(made);
  EXPECT_NE(table.find("2 done, 1 failed, in 2.00 s"), std::string::npos) << table;
  EXPECT_NE(table.find("3.0 tokens/s"), std::string::npos) << table;
  EXPECT_NE(bench_json(made).find("\"answer_tokens_per_second\": 3.0"), std::string::npos);
}

TEST(BenchLoad, GoodputCountsWhatKeepsItsGoals) {
  // 20 ms to the first token, 10 ms for each of four more; one token after 40 ms; a failure.
  const std::vector<RequestTimes> times{{.answer_tokens = 5, .first = 20ms, .whole = 60ms},
                                        {.answer_tokens = 1, .first = 40ms, .whole = 40ms},
                                        {.error = "broken"}};
  const auto good = [&](const BenchGoals& goals) { return figures(times, 2s, goals).good; };
  EXPECT_EQ(good({}), std::nullopt);
  EXPECT_EQ(good({.first_ms = 40}), 2U);
  EXPECT_EQ(good({.first_ms = 39.9}), 1U);
  EXPECT_EQ(good({.per_token_ms = 10}), 2U);
  EXPECT_EQ(good({.per_token_ms = 9.9}), 1U);
  EXPECT_EQ(good({.first_ms = 39.9, .per_token_ms = 9.9}), 0U);
  const BenchFigures made = figures(times, 2s, {.first_ms = 40});
  EXPECT_NE(bench_json(made).find("\"good_requests_per_second\": 1.0"), std::string::npos);
  EXPECT_NE(bench_table(made).find("2 requests within the goals"), std::string::npos);
}

}  // namespace
}  // namespace galley::apps
