#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/random.h"
#include "base/units.h"
#include "recipe/tokenizer.h"

// What `galley bench` asks, and what it makes of the times it sees. No clock, no engine.
namespace galley::apps {

// Prompts of random text tokens.
struct SyntheticLoad {
  std::size_t requests = 0;
  std::size_t prompt_tokens = 0;  // of each
  std::size_t shared_tokens = 0;  // of them, from the first on, the same in all
  Seed seed;
};
[[nodiscard]] std::vector<std::vector<TokenId>> synthetic_prompts(
    const SyntheticLoad& load, const recipe::Tokenizer& tokenizer);

// When requests arrive, from 0 on: a Poisson process.
[[nodiscard]] std::vector<Duration> arrivals(std::size_t count, double per_second, Seed seed);

// The times of one request, from its arrival.
struct RequestTimes {
  Duration begun{};  // the arrival, from the start of the run
  std::int64_t prompt_tokens{};
  std::int64_t cached_tokens{};
  std::int64_t answer_tokens{};
  Duration first{};            // to the first token
  Duration whole{};            // to the end
  std::vector<Duration> gaps;  // between deliveries of tokens
  std::optional<std::string> error;
};

struct Spread {
  double mean{};
  double p50{};
  double p90{};
  double p99{};
};
// Nearest-rank percentiles; all 0 of nothing.
[[nodiscard]] Spread spread(std::vector<double> values);

struct BenchFigures {
  std::size_t done{};
  std::size_t failed{};
  std::int64_t prompt_tokens{};
  std::int64_t cached_tokens{};
  std::int64_t answer_tokens{};
  double seconds{};
  Spread first_ms;      // to the first token
  Spread gap_ms;        // between deliveries
  Spread per_token_ms;  // (whole - first) / (tokens - 1), of a request
  Spread whole_ms;
  std::string error;                // of the first request that failed
  std::optional<std::size_t> good;  // requests within the goals, where there are any
};
// What a request has to keep to be of use: goodput counts those.
struct BenchGoals {
  std::optional<double> first_ms;
  std::optional<double> per_token_ms;
};
[[nodiscard]] BenchFigures figures(const std::vector<RequestTimes>& requests,
                                   Duration took,
                                   const BenchGoals& goals = {});

[[nodiscard]] std::string bench_table(const BenchFigures& figures);
[[nodiscard]] std::string bench_json(const BenchFigures& figures);

}  // namespace galley::apps
