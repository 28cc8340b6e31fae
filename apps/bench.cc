#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fmt/core.h>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/bench_load.h"
#include "apps/bench_remote.h"
#include "apps/bench_report.h"
#include "apps/bench_trace.h"
#include "apps/commands.h"
#include "apps/input.h"
#include "apps/model_source.h"
#include "apps/number_flag.h"
#include "apps/progress_bar.h"
#include "apps/remote.h"
#include "base/mutex.h"
#include "base/quote.h"
#include "base/real_clock.h"
#include "gateway/batch_lines.h"
#include "gateway/codec.h"

// How fast a model answers here: the engine without HTTP, under a load of one's choice.
namespace galley::apps {
namespace {

constexpr std::int64_t kSlotsMax = 1024;
constexpr std::int64_t kRequestsMax = 1'000'000;
constexpr std::int64_t kTokensMax = 1'000'000;
constexpr double kRateMax = 1e6;
constexpr double kRateMin =
    1e-3;  // a request in a quarter of an hour; far less has no time to come
constexpr double kGoalMax = 1e9;
constexpr Duration kProgressInterval = std::chrono::milliseconds(200);

constexpr double kTraceScaleMax = 1e6;

struct Flags {
  std::string model;
  std::string tokenizer;
  std::string jsonl;
  std::string trace;
  TraceScale trace_scale;
  std::int64_t requests = 32;
  std::int64_t concurrency = 8;
  std::optional<double> rate;
  std::int64_t prompt = 256;
  std::int64_t shared = 0;
  std::int64_t output = 48;
  std::int64_t slots = 8;
  std::int64_t seed = 1;
  double temperature = 0;
  std::string cache = "1GiB";
  bool no_drafts = false;
  std::optional<double> acceptance;
  std::string url;
  std::string key;
  std::string name;
  BenchGoals goals;
  std::string html;
  bool json = false;
};

// Where answers say that they have ended.
class Board {
 public:
  void note_end() GALLEY_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      ++ended_;
    }
    changed_.notify_one();
  }
  // How many have; waits for more than `known`, at most for `limit`.
  std::size_t wait(std::size_t known, Duration limit) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (ended_ <= known) {
      changed_.wait_for(mutex_, limit);
    }
    return ended_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::size_t ended_ GALLEY_GUARDED_BY(mutex_) = 0;
};

// One request under way. The source calls from one thread at a time; the times are read once it has
// ended.
class Measured final : public recipe::TokenSink {
 public:
  Measured(Board& board, const Clock& clock, TimeNs arrival)
      : board_(board), clock_(clock), arrival_(arrival) {}

  void on_start(const recipe::Started& started) override {
    times_.prompt_tokens = started.prompt_tokens;
    times_.cached_tokens = started.cached_tokens;
  }
  void on_tokens(std::span<const TokenId> ids, std::span<const recipe::TokenLogprob>) override {
    const TimeNs now = clock_.now();
    if (times_.answer_tokens == 0) {
      times_.first = now - arrival_;
    } else {
      times_.gaps.push_back(now - last_);
    }
    last_ = now;
    times_.answer_tokens += static_cast<std::int64_t>(ids.size());
  }
  void on_finish(recipe::SourceFinish) override { end(); }
  void on_error(Error error) override {
    times_.error = to_string(error);
    end();
  }

  std::unique_ptr<recipe::ActiveGeneration> active;
  [[nodiscard]] const RequestTimes& times() const { return times_; }
  [[nodiscard]] TimeNs arrival() const { return arrival_; }

 private:
  void end() {
    times_.whole = clock_.now() - arrival_;
    board_.note_end();
  }

  Board& board_;
  const Clock& clock_;
  const TimeNs arrival_;
  TimeNs last_;
  RequestTimes times_;
};

// What was asked and how, for a report.
std::string description(const Flags& flags) {
  if (!flags.trace.empty()) {
    return fmt::format("{} requests of {}, lengths times {}, {} times as fast", flags.requests,
                       flags.trace, flags.trace_scale.lengths, flags.trace_scale.pace);
  }
  const std::string load =
      flags.jsonl.empty() ? fmt::format("prompts of {} random tokens ({} shared), answers of {}",
                                        flags.prompt, flags.shared, flags.output)
                          : fmt::format("the requests of {}", flags.jsonl);
  return flags.rate ? fmt::format("{}; {} a second at random times", load, *flags.rate)
                    : fmt::format("{}; {} at once", load, flags.concurrency);
}

// What the lines of a batch file ask for, or random prompts whose answers have a fixed length.
Result<std::vector<recipe::Generation>> make_load(const Flags& flags,
                                                  const LoadedModel& model,
                                                  std::int64_t context_tokens) {
  std::vector<recipe::Generation> load;
  if (flags.jsonl.empty()) {
    if (flags.prompt + flags.output > context_tokens) {
      return fail(Code::kInvalidArgument,
                  fmt::format("prompt and answer exceed the context of {} tokens", context_tokens),
                  "--prompt");
    }
    if (flags.shared > flags.prompt) {
      return fail(Code::kInvalidArgument, "is more than --prompt", "--shared");
    }
    for (std::vector<TokenId>& prompt :
         synthetic_prompts({.requests = static_cast<std::size_t>(flags.requests),
                            .prompt_tokens = static_cast<std::size_t>(flags.prompt),
                            .shared_tokens = static_cast<std::size_t>(flags.shared),
                            .seed = Seed(static_cast<std::uint64_t>(flags.seed))},
                           *model.tokenizer)) {
      recipe::Generation& one = load.emplace_back();
      one.prompt = std::move(prompt);
      one.max_tokens = flags.output;
      one.sampling.temperature = static_cast<float>(flags.temperature);
      one.sampling.seed = flags.seed + static_cast<std::int64_t>(load.size());
    }
    return load;
  }
  GALLEY_TRY(const std::string text, read_input(flags.jsonl));
  GALLEY_TRY(const auto entries, gateway::index_batch(text));
  recipe::CodecOptions options;
  options.models = {{model.name, model.version}};
  GALLEY_TRY(const auto codec,
             gateway::Codec::create(model.tokenizer, std::move(options), context_tokens));
  for (const gateway::BatchEntry& entry : entries) {
    gateway::BatchRequest request = gateway::parse_batch_line(entry.text);
    auto prepared = request.body ? codec->prepare(request.protocol, *request.body)
                                 : Result<gateway::Prepared>(std::unexpected(request.body.error()));
    if (!prepared) {
      return in_step(fmt::format("{}, line {}", flags.jsonl, entry.number),
                     std::move(prepared).error());
    }
    if (prepared->request.sampling.n > 1) {
      return fail(Code::kInvalidArgument, "n above 1 is not measured",
                  fmt::format("{}, line {}", flags.jsonl, entry.number));
    }
    load.push_back(std::move(prepared->generation));
  }
  if (load.empty()) {
    return fail(Code::kInvalidArgument, "has no requests", flags.jsonl);
  }
  return load;
}

struct Measurement {
  std::vector<RequestTimes> times;
  Duration took{};
};

class Run {
 public:
  Run(const Flags& flags,
      std::vector<recipe::Generation> load,
      recipe::TokenSource& source,
      const Clock& clock)
      : load_(std::move(load)), source_(source), clock_(clock) {
    if (flags.rate) {
      arrivals_ = arrivals(load_.size(), *flags.rate, Seed(static_cast<std::uint64_t>(flags.seed)));
    } else {
      at_once_ = static_cast<std::size_t>(flags.concurrency);
    }
  }

  Result<Measurement> all() {
    const TimeNs begin = clock_.now();
    std::size_t ended = 0;
    while (ended < load_.size()) {
      GALLEY_CHECK_OK(start_due(begin, ended));
      ended = board_.wait(ended, until_next(begin));
      bar_.show(ended, load_.size());
    }
    Measurement out{.took = clock_.now() - begin};
    for (const auto& one : under_way_) {
      out.times.push_back(one->times());
      out.times.back().begun = one->arrival() - begin;
    }
    return out;
  }

 private:
  [[nodiscard]] bool due(TimeNs begin, std::size_t ended) const {
    const std::size_t next = under_way_.size();
    return next < load_.size() &&
           (arrivals_.empty() ? next - ended < at_once_ : begin + arrivals_[next] <= clock_.now());
  }
  Result<void> start_due(TimeNs begin, std::size_t ended) {
    while (due(begin, ended)) {
      const std::size_t next = under_way_.size();
      // A request that could not be begun in time has waited since it was to come.
      const TimeNs arrival = arrivals_.empty() ? clock_.now() : begin + arrivals_[next];
      Measured& one = *under_way_.emplace_back(std::make_unique<Measured>(board_, clock_, arrival));
      auto active = source_.start(std::move(load_[next]), one);
      if (!active) {
        one.on_error(std::move(active).error());
        continue;
      }
      one.active = std::move(*active);
    }
    return {};
  }
  [[nodiscard]] Duration until_next(TimeNs begin) const {
    const std::size_t next = under_way_.size();
    if (arrivals_.empty() || next == load_.size()) {
      return kProgressInterval;
    }
    return std::clamp(begin + arrivals_[next] - clock_.now(), Duration(1), kProgressInterval);
  }

  std::vector<recipe::Generation> load_;
  recipe::TokenSource& source_;
  const Clock& clock_;
  std::vector<Duration> arrivals_;  // empty: a new request begins when one ends
  std::size_t at_once_ = 0;
  Board board_;
  std::vector<std::unique_ptr<Measured>> under_way_;  // and ended
  ProgressBar bar_;
};

// Tables, JSON, the report. Error: a request failed, or the report cannot be written.
Result<void> show(const Flags& flags,
                  std::string_view who,
                  const Measurement& measured,
                  std::string_view more) {
  const BenchFigures seen = figures(measured.times, measured.took, flags.goals);
  if (flags.json) {
    fmt::print("{}\n", bench_json(seen));
  } else {
    fmt::print("{}\n{}{}", who, bench_table(seen), more);
  }
  if (!flags.html.empty()) {
    std::ofstream file(flags.html);
    file << bench_html(fmt::format("{}; {}", who, description(flags)), seen, measured.times);
    file.close();
    if (!file) {
      return fail(Code::kUnavailable, "cannot be written", flags.html);
    }
  }
  if (seen.failed > 0) {
    return fail(Code::kUnavailable,
                fmt::format("{} requests failed, the first: {}", seen.failed, seen.error));
  }
  return {};
}

Result<void> bench_there(const Flags& flags) {
  if (flags.shared > flags.prompt) {
    return fail(Code::kInvalidArgument, "is more than --prompt", "--shared");
  }
  const RealClock clock;
  const Server server{.url = flags.url, .key = Secret(flags.key)};
  std::string model = flags.name;
  if (model.empty()) {
    GALLEY_TRY(model, first_model(server));
  }
  const Seed seed(static_cast<std::uint64_t>(flags.seed));
  std::vector<gateway::HttpAsk> asks;
  std::vector<Duration> when;
  if (!flags.trace.empty()) {
    GALLEY_TRY(const std::string text, read_input(flags.trace));
    auto entries = parse_trace(text, static_cast<std::size_t>(flags.requests));
    if (!entries) {
      return in_step(flags.trace, std::move(entries).error());
    }
    rescale(*entries, flags.trace_scale);
    for (const TraceEntry& entry : *entries) {
      when.push_back(entry.at);
    }
    GALLEY_TRY(
        asks,
        asks_of_trace(server, *entries,
                      {.load = {.seed = seed}, .model = model, .temperature = flags.temperature}));
  } else if (flags.jsonl.empty()) {
    GALLEY_TRY(asks, synthetic_asks(
                         server, {.load = {.requests = static_cast<std::size_t>(flags.requests),
                                           .prompt_tokens = static_cast<std::size_t>(flags.prompt),
                                           .shared_tokens = static_cast<std::size_t>(flags.shared),
                                           .seed = seed},
                                  .model = model,
                                  .answer_tokens = flags.output,
                                  .temperature = flags.temperature}));
  } else {
    GALLEY_TRY(const std::string text, read_input(flags.jsonl));
    GALLEY_TRY(asks, asks_of_batch(server, text));
  }
  if (flags.rate) {
    when = arrivals(asks.size(), *flags.rate, seed);
  }
  Measurement measured;
  const TimeNs begin = clock.now();
  measured.times = ask_all(asks, static_cast<std::size_t>(flags.concurrency), when, clock);
  measured.took = clock.now() - begin;
  return show(flags, fmt::format("{} at {}", harmless(model), harmless(flags.url)), measured, "");
}

Result<void> bench_here(const Flags& flags) {
  GALLEY_TRY(const Bytes cache, parse_bytes(flags.cache));
  const RealClock clock;
  GALLEY_TRY(LoadedModel model, load_model(flags.model, flags.tokenizer));
  GALLEY_TRY(const auto source, make_engine(model,
                                            {.slots = static_cast<std::size_t>(flags.slots),
                                             .cache = cache,
                                             .waiting_max = static_cast<std::size_t>(kRequestsMax),
                                             .drafts = !flags.no_drafts,
                                             .injected_acceptance = flags.acceptance},
                                            clock));
  report_packed(model.packed);
  GALLEY_TRY(auto load, make_load(flags, model, source->context_tokens()));
  GALLEY_TRY(const Measurement measured, Run(flags, std::move(load), *source, clock).all());
  const engine::SchedulerStats stats = source->stats();
  std::string more = fmt::format(
      "\n{} steps of {:.1f} requests", stats.steps,
      stats.steps == 0 ? 0.0 : static_cast<double>(stats.rows) / static_cast<double>(stats.steps));
  if (stats.drafts_verified > 0) {
    more +=
        fmt::format("; {} of {} drafts verified, {} accepted; {} steps without drafter",
                    stats.drafts_verified, stats.drafts, stats.drafts_accepted, stats.plain_steps);
  }
  more += fmt::format("; {} preemptions\n", stats.preemptions);
  return show(flags, source->description(), measured, more);
}

}  // namespace

void add_bench(CLI::App& galley, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = galley.add_subcommand(
      "bench",
      "Measures how fast a model answers: here without HTTP, or at a server. Random prompts with "
      "answers of a fixed length, or the requests of a batch file. By default as many are under "
      "way as --concurrency "
      "says (closed loop); with --rate they come as they like (open loop), and their times count "
      "from when they were to come.");
  CLI::Option_group* const where = command->add_option_group("Who answers");
  CLI::Option* const model = where->add_option("--model", flags->model, "Folder of a checkpoint.");
  CLI::Option* const url =
      where->add_option("--url", flags->url,
                        "A server. Random prompts need its /v1/tokenize and its /v1/completions.");
  where->require_option(1);
  command->add_option("--key", flags->key, "API key for --url; or in the variable GALLEY_KEY.")
      ->envname("GALLEY_KEY");
  command
      ->add_option("--name", flags->name, "Model to ask for at --url. Default: the first it lists.")
      ->needs(url);
  command->add_option("--tokenizer", flags->tokenizer,
                      "A tokenizer.json. Default: the checkpoint's own.");
  CLI::Option* const jsonl =
      command->add_option("--jsonl", flags->jsonl, "Requests, in the form `galley run` takes.");
  command->add_option("--requests", flags->requests, "How many. Default: 32.")
      ->check(integer_in(1, kRequestsMax))
      ->excludes(jsonl);
  CLI::Option* const prompt =
      command->add_option("--prompt", flags->prompt, "Tokens of each prompt. Default: 256.")
          ->check(integer_in(1, kTokensMax))
          ->excludes(jsonl);
  CLI::Option* const shared =
      command->add_option("--shared", flags->shared, "Of them the same in all. Default: 0.")
          ->check(integer_in(0, kTokensMax))
          ->excludes(jsonl);
  CLI::Option* const output =
      command->add_option("--output", flags->output, "Tokens of each answer. Default: 48.")
          ->check(integer_in(1, kTokensMax))
          ->excludes(jsonl);
  command->add_option("--temperature", flags->temperature, "0 to 2. Default: 0.")
      ->check(number_in(0, 2))
      ->excludes(jsonl);
  CLI::Option* const trace =
      command
          ->add_option("--trace", flags->trace,
                       "A recorded load, whose times, lengths and shared beginnings are played at "
                       "--url: the first --requests lines of a trace of Mooncake, LMCache, FlexLB "
                       "or Azure.")
          ->needs(url)
          ->excludes(jsonl)
          ->excludes(prompt)
          ->excludes(shared)
          ->excludes(output);
  command
      ->add_option("--trace-lengths", flags->trace_scale.lengths,
                   "Times the lengths of the trace. Default: 1.")
      ->check(number_above(0, kTraceScaleMax))
      ->needs(trace);
  command
      ->add_option("--trace-pace", flags->trace_scale.pace,
                   "How many times as fast as it was recorded. Default: 1.")
      ->check(number_above(0, kTraceScaleMax))
      ->needs(trace);
  CLI::Option* const concurrency =
      command->add_option("--concurrency", flags->concurrency, "Under way at once. Default: 8.")
          ->check(integer_in(1, kRequestsMax))
          ->excludes(trace);
  command->add_option("--rate", flags->rate, "Requests a second, at random times.")
      ->check(number_in(kRateMin, kRateMax))
      ->excludes(concurrency)
      ->excludes(trace);
  command->add_option("--slots", flags->slots, "Requests that are answered at once. Default: 8.")
      ->check(integer_in(1, kSlotsMax))
      ->needs(model);
  command->add_option("--cache", flags->cache, "Memory for blocks. Default: 1GiB.")
      ->check([](const std::string& text) {
        const auto bytes = parse_bytes(text);
        return bytes ? std::string() : to_string(bytes.error());
      });
  command->add_option("--seed", flags->seed, "Of prompts, arrivals and answers. Default: 1.")
      ->check(integer_in(0, std::int64_t{1} << 53));
  CLI::Option* const plain =
      command->add_flag("--no-drafts", flags->no_drafts, "No speculation.")->needs(model);
  command
      ->add_option("--acceptance", flags->acceptance,
                   "Take a draft for right with this probability, whatever the model says: the "
                   "answers are nonsense, their speed is that of such a drafter.")
      ->check(number_in(0, 1))
      ->needs(model)
      ->excludes(plain);
  command
      ->add_option("--goal-first", flags->goals.first_ms,
                   "Milliseconds to the first token that a request of use keeps (goodput).")
      ->check(number_above(0, kGoalMax));
  command
      ->add_option("--goal-token", flags->goals.per_token_ms,
                   "Milliseconds per further token, likewise.")
      ->check(number_above(0, kGoalMax));
  command->add_option("--html", flags->html, "Write a report with plots into this file.");
  command->add_flag("--json", flags->json, "For programs.");
  command->callback([flags, &exit_code] {
    if (const auto done = flags->url.empty() ? bench_here(*flags) : bench_there(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
