// What the engine adds to the network and takes from it: prefix hits, prompts beside streams, host
// time, speculation. See README.md.
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fmt/core.h>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/bench_load.h"
#include "apps/pack_folder.h"
#include "base/cpu_count.h"
#include "base/result.h"
#include "bench/engine/load.h"
#include "cache/prefix_cache.h"
#include "kernels/device.h"
#include "kernels/isa.h"
#include "model/network.h"

namespace galley::bench {
namespace {

struct Options {
  std::string directory;
  std::vector<std::string> only;
  int rounds = 5;
  int pairs = 15;
  std::int64_t prefix = 4096;
  std::int64_t long_prompt = 77'056;
  double per_verify = 3.5;  // tokens; 0: as the model accepts
  std::vector<int> rows = {1, 4, 16, 32};
};

double milliseconds(Duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

// Nearest rank.
double percentile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const auto rank = static_cast<std::size_t>(share * static_cast<double>(values.size()));
  return values.at(std::min(rank, values.size() - 1));
}

double median(std::vector<double> values) {
  return percentile(std::move(values), 0.5);
}

// The chance of each draft with which gamma of them give `tokens` a verification.
double acceptance_for(double tokens, int gamma) {
  double low = 0;
  double high = 1;
  for (int i = 0; i < 50; ++i) {
    const double chance = (low + high) / 2;
    double sum = 1;
    double power = 1;
    for (int k = 0; k < gamma; ++k) {
      power *= chance;
      sum += power;
    }
    (sum < tokens ? low : high) = chance;
  }
  return low;
}

void line(std::string_view what, std::string_view figures) {
  fmt::print("{:<14} {}\n", what, figures);
  std::fflush(stdout);
}

class Bench {
 public:
  Bench(const Options& options,
        model::Network& network,
        std::shared_ptr<const recipe::Tokenizer> tokenizer)
      : options_(options), network_(network), tokenizer_(std::move(tokenizer)) {}

  // A prompt whose beginning is in memory, beside a cold one of as many tokens as it computes.
  void hits() {
    hits(Bytes(0));
    hits(Bytes(std::uint64_t{1} << 30U));
  }
  void hits(Bytes states) {
    constexpr std::int64_t kNew = 16;
    const std::int64_t whole = options_.prefix + kNew;
    Loop loop = make({.slots = 1, .context_tokens = whole + kNew, .states = states});
    const auto shared = prompts(1, options_.prefix).front();
    (void)first_token(loop, shared);
    std::vector<double> hit;
    std::vector<double> equal;
    std::vector<double> cold;
    std::int64_t computed = 0;
    for (int round = 0; round < options_.rounds; ++round) {
      std::vector<TokenId> prompt = shared;
      const auto rest = prompts(1, kNew).front();
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const Answer warm = first_token(loop, std::move(prompt));
      computed = whole - warm.cached;
      hit.push_back(warm.ms);
      equal.push_back(first_token(loop, prompts(1, computed).front()).ms);
      cold.push_back(first_token(loop, prompts(1, whole).front()).ms);
      // Cold prompts have taken blocks: the beginning is asked for again, so that it stays.
      (void)first_token(loop, shared);
    }
    line("hit",
         fmt::format(
             "{} tokens in memory, windows {}, {} computed: first token {:.1f} ms; as many cold "
             "{:.1f} ms, {:.2f} times (at most 1.2); whole prompt cold {:.0f} ms",
             options_.prefix, states.value() > 0 ? "stored" : "rebuilt", computed, median(hit),
             median(equal), median(hit) / median(equal), median(cold)));
  }

  // Streams that run while a prompt is admitted. A round has limits of its own: the machine changes
  // within seconds.
  void gaps() {
    constexpr std::size_t kStreams = 4;
    std::vector<double> calm;
    std::vector<double> beside;
    std::vector<double> chunk;
    std::vector<double> share;
    for (int round = 0; round < options_.rounds; ++round) {
      Loop loop = make({.slots = kStreams + 1, .context_tokens = options_.prefix + 1024});
      (void)first_token(loop, prompts(1, 512).front());  // touches memory
      std::vector<double> alone;
      for (int i = 0; i < 3; ++i) {
        alone.push_back(first_token(loop, prompts(1, kBlockTokens).front()).ms);
      }
      std::vector<engine::RequestId> streams;
      for (auto& prompt : prompts(kStreams, 64)) {
        streams.push_back(loop.submit(std::move(prompt), 900));
      }
      while (loop.seen(streams.back()).times.size() < 40 && loop.turn()) {
      }
      const TimeNs admitted = loop.now();
      const auto prompt = loop.submit(prompts(1, options_.prefix).front(), 1);
      while (!loop.seen(prompt).ended && loop.turn()) {
      }
      std::vector<double> before;
      std::vector<double> during;
      for (const engine::RequestId stream : streams) {
        const std::vector<TimeNs>& times = loop.seen(stream).times;
        for (std::size_t i = 8; i < times.size(); ++i) {  // behind its own beginning
          (times[i] < admitted ? before : during).push_back(milliseconds(times[i] - times[i - 1]));
        }
      }
      calm.push_back(median(before));
      beside.push_back(percentile(during, 0.99));
      chunk.push_back(median(alone));
      share.push_back(beside.back() / (calm.back() + 1.2 * chunk.back()));
    }
    line("gap", fmt::format("{} streams, a prompt of {} admitted: gap median {:.1f} ms, beside it "
                            "p99 {:.1f} ms; 128 tokens alone {:.1f} ms; p99 over what it may be "
                            "{:.2f} (at most 1)",
                            kStreams, options_.prefix, median(calm), median(beside), median(chunk),
                            median(share)));
  }

  // Time of a step in which the device does nothing.
  void overhead() {
    for (const std::size_t rows : {std::size_t{1}, std::size_t{32}}) {
      std::vector<double> us;
      double step = 0;
      for (int round = 0; round < options_.rounds; ++round) {
        Loop loop = make({.slots = rows, .context_tokens = 256});
        for (auto& prompt : prompts(rows, 16)) {
          (void)loop.submit(std::move(prompt), 48);
        }
        while (loop.stats().answer_tokens < std::int64_t{8} * static_cast<std::int64_t>(rows) &&
               loop.turn()) {
        }
        (void)loop.take_totals();
        const TimeNs begin = loop.now();
        for (int i = 0; i < 24; ++i) {
          (void)loop.turn();
        }
        const Duration took = loop.now() - begin;
        const StepTotals totals = loop.take_totals();
        us.push_back(1e3 * milliseconds(took - totals.device) / static_cast<double>(totals.steps));
        step = milliseconds(took) / static_cast<double>(totals.steps);
      }
      line("overhead",
           fmt::format(
               "{} rows: {:.0f} us a step outside forward and sampler (at most {}), of {:.1f} ms",
               rows, median(us), rows == 1 ? 150 : 1000, step));
    }
  }

  // Tokens a second without drafts, with all of them and with budgets, in turns.
  void speculation() {
    const int gamma = engine::NetworkDevice::drafts(network_.plan(), {.drafts = true});
    const std::optional<double> acceptance =
        options_.per_verify > 0 ? std::optional(acceptance_for(options_.per_verify, gamma))
                                : std::nullopt;
    for (const int rows : options_.rows) {
      const auto slots = static_cast<std::size_t>(rows);
      const std::int64_t answer = std::max(24, 96 / rows);
      LoopOptions options{.slots = slots, .context_tokens = 512};
      Loop off = make(options);
      options.drafts = true;
      options.acceptance = acceptance;
      Loop budget = make(options);
      options.budgets = false;
      Loop all = make(options);
      std::vector<double> to_off;
      std::vector<double> to_all;
      std::vector<double> plain;
      std::vector<double> adaptive;
      std::vector<double> fixed;
      constexpr int kWarm = 3;  // budgets learn what steps take
      for (int pair = -kWarm; pair < options_.pairs; ++pair) {
        const double a = rate(off, slots, answer);
        const double b = rate(budget, slots, answer);
        const double c = rate(all, slots, answer);
        if (pair >= 0) {
          plain.push_back(a);
          adaptive.push_back(b);
          fixed.push_back(c);
          to_off.push_back(b / a);
          to_all.push_back(b / c);
        }
      }
      line("speculation",
           fmt::format(
               "{:>2} rows, {}: off {:6.1f}, all {} {:6.1f}, budgets {:6.1f} tokens/s; budgets "
               "over off {:.2f} (at least 0.98), over all {:.2f}",
               rows,
               acceptance ? fmt::format("{} tokens a verification", options_.per_verify)
                          : std::string("the model's own drafts"),
               median(plain), gamma, median(fixed), median(adaptive), median(to_off),
               median(to_all)));
    }
  }

  // Prompts of which 96 % are in memory, over cold ones.
  void long_prompts() {
    const std::int64_t whole = options_.long_prompt;
    const std::int64_t shared_tokens = whole * 96 / 100 / kBlockTokens * kBlockTokens;
    Loop loop = make({.slots = 1, .context_tokens = whole + 16});
    const auto cold = prompts(1, whole).front();
    const double cold_ms = first_token(loop, cold).ms;
    std::vector<double> ms;
    std::int64_t computed = 0;
    for (int round = 0; round < options_.rounds; ++round) {
      std::vector<TokenId> prompt(cold.begin(), cold.begin() + shared_tokens);
      const auto rest = prompts(1, whole - shared_tokens).front();
      prompt.insert(prompt.end(), rest.begin(), rest.end());
      const Answer warm = first_token(loop, std::move(prompt));
      computed = whole - warm.cached;
      ms.push_back(warm.ms);
    }
    line(
        "long",
        fmt::format("prompts of {}: cold {:.0f} tokens/s; {:.1f} % in memory, {} computed: {:.0f} "
                    "tokens/s, {:.1f} times",
                    whole, 1e3 * static_cast<double>(whole) / cold_ms,
                    100.0 * static_cast<double>(shared_tokens) / static_cast<double>(whole),
                    computed, 1e3 * static_cast<double>(whole) / median(ms), cold_ms / median(ms)));
  }

 private:
  struct Answer {
    double ms{};
    std::int64_t cached{};
  };

  Loop make(LoopOptions options) {
    // Room for two contexts more than run: what was cold stays out of the way of what is shared.
    options.blocks =
        (options.slots + 2) * static_cast<std::size_t>(options.context_tokens / kBlockTokens + 2);
    return Loop(network_, tokenizer_, options);
  }

  std::vector<std::vector<TokenId>> prompts(std::size_t count, std::int64_t tokens) {
    return apps::synthetic_prompts({.requests = count,
                                    .prompt_tokens = static_cast<std::size_t>(tokens),
                                    .seed = Seed(++seed_)},
                                   *tokenizer_);
  }

  static Answer first_token(Loop& loop, std::vector<TokenId> prompt) {
    const auto id = loop.submit(std::move(prompt), 1);
    loop.run();
    const Seen& seen = loop.seen(id);
    return {.ms = milliseconds(seen.times.front() - seen.submitted), .cached = seen.cached_tokens};
  }

  // From when all rows have begun to when the first ends.
  double rate(Loop& loop, std::size_t rows, std::int64_t answer) {
    std::vector<engine::RequestId> ids;
    for (auto& prompt : prompts(rows, 32)) {
      ids.push_back(loop.submit(std::move(prompt), answer));
    }
    loop.run();
    TimeNs begin = loop.seen(ids.front()).times.front();
    TimeNs end = loop.seen(ids.front()).times.back();
    for (const auto id : ids) {
      begin = std::max(begin, loop.seen(id).times.front());
      end = std::min(end, loop.seen(id).times.back());
    }
    std::int64_t tokens = 0;
    for (const auto id : ids) {
      const Seen& seen = loop.seen(id);
      for (std::size_t i = 0; i < seen.times.size(); ++i) {
        tokens += seen.times[i] > begin && seen.times[i] <= end ? seen.tokens[i] : 0;
      }
    }
    return 1e3 * static_cast<double>(tokens) / milliseconds(end - begin);
  }

  const Options& options_;
  model::Network& network_;
  const std::shared_ptr<const recipe::Tokenizer> tokenizer_;
  std::uint64_t seed_ = 0;
};

Result<void> run(const Options& options) {
  GALLEY_TRY(const kernels::Isa isa, kernels::choose_isa(kernels::wanted_isa()));
  const auto device = kernels::create_cpu_device(cpu_count(), isa);
  GALLEY_TRY(const auto network, model::Network::load(options.directory, *device, {},
                                                      apps::pack_folder().value_or("")));
  GALLEY_TRY(std::shared_ptr<const recipe::Tokenizer> tokenizer,
             recipe::Tokenizer::from_file(options.directory + "/tokenizer.json"));
  fmt::print("{}: {} threads, {}\n", options.directory, cpu_count(), kernels::isa_name(isa));
  Bench bench(options, *network, tokenizer);
  const std::pair<std::string_view, void (Bench::*)()> sections[] = {
      {"hit", &Bench::hits},
      {"gap", &Bench::gaps},
      {"overhead", &Bench::overhead},
      {"speculation", &Bench::speculation},
      {"long", &Bench::long_prompts}};
  for (const auto& [name, section] : sections) {
    if (options.only.empty() || std::ranges::find(options.only, name) != options.only.end()) {
      (bench.*section)();
    }
  }
  return {};
}

}  // namespace
}  // namespace galley::bench

int main(int argc, char** argv) {
  galley::bench::Options options;
  CLI::App app("What the engine costs and saves around the network, on a checkpoint.");
  app.add_option("model", options.directory, "Folder of a checkpoint.")->required();
  app.add_option("--only", options.only, "hit, gap, overhead, speculation, long. Default: all.")
      ->check(CLI::IsMember({"hit", "gap", "overhead", "speculation", "long"}));
  app.add_option("--rounds", options.rounds, "Of which figures are medians. Default: 5.")
      ->check(CLI::Range(1, 1000));
  app.add_option("--pairs", options.pairs, "Of speculation, in turns. Default: 15.")
      ->check(CLI::Range(1, 1000));
  app.add_option("--rows", options.rows, "Of speculation. Default: 1 4 16 32.")
      ->check(CLI::Range(1, 1024));
  app.add_option("--per-verify", options.per_verify,
                 "Tokens a verification of speculation; 0: as the model accepts. Default: 3.5.")
      ->check(CLI::Range(0.0, 16.0));
  app.add_option("--prefix", options.prefix, "Tokens of `hit` and `gap`. Default: 4096.")
      ->check(CLI::Range(256, 1'000'000));
  app.add_option("--long", options.long_prompt, "Tokens of `long`. Default: 77056.")
      ->check(CLI::Range(4096, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  if (const auto done = galley::bench::run(options); !done) {
    fmt::print(stderr, "engine_bench: {}\n", to_string(done.error()));
    return 1;
  }
  return 0;
}
