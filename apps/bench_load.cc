#include "apps/bench_load.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <fmt/core.h>
#include <numeric>
#include <string_view>

#include <nlohmann/json.hpp>

namespace galley::apps {
namespace {

double milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

double rate(std::int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

}  // namespace

std::vector<std::vector<TokenId>> synthetic_prompts(const SyntheticLoad& load,
                                                    const recipe::Tokenizer& tokenizer) {
  std::vector<TokenId> text;
  for (std::size_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
    const auto token = static_cast<TokenId>(id);
    if (!tokenizer.is_added(token) && !tokenizer.bytes(token).empty()) {
      text.push_back(token);
    }
  }
  Random random(load.seed, 0);
  const auto draw = [&](std::size_t count, std::vector<TokenId>& out) {
    for (std::size_t i = 0; i < count; ++i) {
      out.push_back(text[random.next_below(text.size())]);
    }
  };
  std::vector<TokenId> shared;
  draw(std::min(load.shared_tokens, load.prompt_tokens), shared);
  std::vector<std::vector<TokenId>> prompts(load.requests, shared);
  for (std::vector<TokenId>& prompt : prompts) {
    draw(load.prompt_tokens - prompt.size(), prompt);
  }
  return prompts;
}

std::vector<Duration> arrivals(std::size_t count, double per_second, Seed seed) {
  Random random(seed, 1);
  std::vector<Duration> times;
  double time = 0;
  for (std::size_t i = 0; i < count; ++i) {
    times.push_back(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(time)));
    time -= std::log1p(-static_cast<double>(random.next_float())) / per_second;
  }
  return times;
}

Spread spread(std::vector<double> values) {
  if (values.empty()) {
    return {};
  }
  std::ranges::sort(values);
  const auto rank = [&values](double share) {
    const double at = std::ceil(share * static_cast<double>(values.size()));
    return values[static_cast<std::size_t>(std::max(at, 1.0)) - 1];
  };
  return {.mean = std::reduce(values.begin(), values.end()) / static_cast<double>(values.size()),
          .p50 = rank(0.5),
          .p90 = rank(0.9),
          .p99 = rank(0.99)};
}

BenchFigures figures(const std::vector<RequestTimes>& requests,
                     Duration took,
                     const BenchGoals& goals) {
  std::size_t good = 0;
  BenchFigures out{.seconds = std::chrono::duration<double>(took).count()};
  std::vector<double> first;
  std::vector<double> gaps;
  std::vector<double> per_token;
  std::vector<double> whole;
  for (const RequestTimes& request : requests) {
    out.prompt_tokens += request.prompt_tokens;
    out.cached_tokens += request.cached_tokens;
    out.answer_tokens += request.answer_tokens;
    if (request.error) {
      ++out.failed;
      out.error = out.error.empty() ? *request.error : out.error;
      continue;
    }
    ++out.done;
    first.push_back(milliseconds(request.first));
    whole.push_back(milliseconds(request.whole));
    for (const Duration gap : request.gaps) {
      gaps.push_back(milliseconds(gap));
    }
    const double each = request.answer_tokens > 1
                            ? milliseconds(request.whole - request.first) /
                                  static_cast<double>(request.answer_tokens - 1)
                            : 0.0;
    if (request.answer_tokens > 1) {
      per_token.push_back(each);
    }
    if (milliseconds(request.first) <= goals.first_ms.value_or(HUGE_VAL) &&
        each <= goals.per_token_ms.value_or(HUGE_VAL)) {
      ++good;
    }
  }
  if (goals.first_ms || goals.per_token_ms) {
    out.good = good;
  }
  out.first_ms = spread(std::move(first));
  out.gap_ms = spread(std::move(gaps));
  out.per_token_ms = spread(std::move(per_token));
  out.whole_ms = spread(std::move(whole));
  return out;
}

std::string bench_table(const BenchFigures& figures) {
  std::string out = fmt::format(
      "requests  {:>9} done, {} failed, in {:.2f} s\n"
      "prompts   {:>9} tokens, {} of them from the cache; {:.1f} tokens/s\n"
      "answers   {:>9} tokens; {:.1f} tokens/s\n\n"
      "{:<16} {:>9} {:>9} {:>9} {:>9}\n",
      figures.done, figures.failed, figures.seconds, figures.prompt_tokens, figures.cached_tokens,
      rate(figures.prompt_tokens, figures.seconds), figures.answer_tokens,
      rate(figures.answer_tokens, figures.seconds), "ms", "mean", "p50", "p90", "p99");
  for (const auto& [name, values] :
       std::array<std::pair<std::string_view, Spread>, 4>{{{"first token", figures.first_ms},
                                                           {"between steps", figures.gap_ms},
                                                           {"per token", figures.per_token_ms},
                                                           {"whole answer", figures.whole_ms}}}) {
    out += fmt::format("{:<16} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", name, values.mean,
                       values.p50, values.p90, values.p99);
  }
  if (figures.good) {
    out +=
        fmt::format("\ngoodput   {:>9} requests within the goals, {:.2f} a second\n", *figures.good,
                    rate(static_cast<std::int64_t>(*figures.good), figures.seconds));
  }
  return out;
}

std::string bench_json(const BenchFigures& figures) {
  const auto spread_json = [](const Spread& values) {
    return nlohmann::ordered_json{
        {"mean", values.mean}, {"p50", values.p50}, {"p90", values.p90}, {"p99", values.p99}};
  };
  nlohmann::ordered_json out{
      {"requests", figures.done},
      {"failed", figures.failed},
      {"seconds", figures.seconds},
      {"prompt_tokens", figures.prompt_tokens},
      {"cached_tokens", figures.cached_tokens},
      {"answer_tokens", figures.answer_tokens},
      {"prompt_tokens_per_second", rate(figures.prompt_tokens, figures.seconds)},
      {"answer_tokens_per_second", rate(figures.answer_tokens, figures.seconds)},
      {"first_token_ms", spread_json(figures.first_ms)},
      {"between_steps_ms", spread_json(figures.gap_ms)},
      {"per_token_ms", spread_json(figures.per_token_ms)},
      {"whole_answer_ms", spread_json(figures.whole_ms)}};
  if (figures.good) {
    out["good_requests"] = *figures.good;
    out["good_requests_per_second"] =
        rate(static_cast<std::int64_t>(*figures.good), figures.seconds);
  }
  return out.dump(1);
}

}  // namespace galley::apps
