#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/model_source.h"
#include "apps/number_flag.h"
#include "apps/progress_bar.h"
#include "base/entropy.h"
#include "base/metrics.h"
#include "base/real_clock.h"
#include "base/units.h"
#include "gateway/batch_lines.h"
#include "gateway/batch_output.h"
#include "gateway/batch_run.h"
#include "gateway/codec.h"
#include "recipe/limits.h"
#include "recipe/random_ids.h"

// An offline batch: lines of requests in, lines of answers out.
namespace galley::apps {
namespace {

// Generations under way for each that runs: the next one has its prompt when a slot falls free, and
// short answers do not leave slots empty.
constexpr std::size_t kGenerationsPerSlot = 2;
// Of one line, which begins alone where it has more than are under way.
constexpr auto kChoicesMax = static_cast<std::size_t>(recipe::kChoiceCountMax);
constexpr std::int64_t kSlotsMax = 1024;
constexpr std::int64_t kContextTokensMax = std::int64_t{1} << 32;

struct Flags {
  std::string input;
  std::string output;
  std::string model;
  std::string tokenizer;
  std::int64_t slots = 8;
  std::int64_t context_tokens = 0;
  std::string cache = "1GiB";
};

// What there is to do.
struct Batch {
  std::string text;  // the entries view it
  std::vector<gateway::BatchEntry> entries;
};

// What this run did.
struct Outcome {
  gateway::BatchFigures figures;
  engine::SchedulerStats stats;
  Duration took{};
};

std::unexpected<Error> in_file(const std::string& path, Error error) {
  error.where = error.where.empty() ? path : fmt::format("{}, {}", path, error.where);
  return std::unexpected(std::move(error));
}

Result<Batch> read_batch(const std::string& path) {
  Batch batch;
  GALLEY_TRY(batch.text, read_input(path));
  auto entries = gateway::index_batch(batch.text);
  if (!entries) {
    return in_file(path, std::move(entries).error());
  }
  batch.entries = *std::move(entries);
  return batch;
}

void print_summary(std::size_t lines, const gateway::BatchDone& before, const Outcome& outcome) {
  std::string text = fmt::format("galley: {} lines: {} answered, {} failed", lines,
                                 before.size() - before.failed + outcome.figures.succeeded,
                                 before.failed + outcome.figures.failed);
  if (before.size() > 0) {
    text += fmt::format("; {} of them by earlier runs", before.size());
  }
  const double seconds = std::chrono::duration<double>(outcome.took).count();
  if (seconds > 0) {
    text += fmt::format("; {} prompt tokens, {} more from the cache, {} answer tokens in {:.1f} s",
                        outcome.stats.prefill_tokens, outcome.stats.hit_tokens,
                        outcome.stats.answer_tokens, seconds);
  }
  fmt::print(stderr, "{}\n", text);
}

// Answers what is `left` of a batch.
Result<Outcome> answer(const Flags& flags,
                       std::span<const gateway::BatchEntry> left,
                       gateway::BatchOutput& output) {
  GALLEY_TRY(const Bytes cache, parse_bytes(flags.cache));
  const RealClock clock;
  GALLEY_TRY(LoadedModel model, load_model(flags.model, flags.tokenizer));
  const auto slots = static_cast<std::size_t>(flags.slots);
  const std::size_t window = kGenerationsPerSlot * slots;
  GALLEY_TRY(const auto source, make_engine(model,
                                            {.context_tokens = flags.context_tokens,
                                             .slots = slots,
                                             .cache = cache,
                                             .waiting_max = std::max(window, kChoicesMax)},
                                            clock));
  report_packed(model.packed);
  recipe::CodecOptions options;
  options.models = {{model.name, model.version}};
  GALLEY_TRY(const auto codec,
             gateway::Codec::create(model.tokenizer, std::move(options), source->context_tokens()));
  recipe::RandomIds ids(entropy_seed());
  Metrics metrics;
  BatchBar bar;
  const std::size_t before = output.done().size();
  const TimeNs begin = clock.now();
  const auto show = [&](const gateway::BatchFigures& figures) {
    bar.show({.done = before + figures.answered,
              .done_before = before,
              .total = before + left.size(),
              .failed = figures.failed,
              .tokens = source->stats().answer_tokens,
              .elapsed = clock.now() - begin});
  };
  Outcome outcome;
  GALLEY_TRY(outcome.figures,
             gateway::answer_batch(
                 left,
                 {.codec = *codec,
                  .source = *source,
                  .clock = clock,
                  .ids = ids,
                  .metrics = gateway::ReplyMetrics(metrics),
                  .limits = gateway::kBatchReplyLimits},
                 window,
                 {.write = [&output](std::string_view line) { return output.append(line); },
                  .progress = show}));
  outcome.stats = source->stats();
  outcome.took = clock.now() - begin;
  return outcome;
}

Result<void> run(const Flags& flags) {
  std::error_code error;
  if (std::filesystem::equivalent(flags.input, flags.output, error)) {
    return fail(Code::kInvalidArgument, "is the input itself", flags.output);
  }
  GALLEY_TRY(Batch batch, read_batch(flags.input));
  GALLEY_TRY(auto output, gateway::BatchOutput::open(flags.output));
  const std::size_t lines = batch.entries.size();
  const auto left = gateway::entries_left(std::move(batch.entries), output.done());
  if (!left) {
    return in_file(flags.output, left.error());
  }
  Outcome outcome;
  if (!left->empty()) {
    GALLEY_TRY(outcome, answer(flags, *left, output));
  }
  print_summary(lines, output.done(), outcome);
  return {};
}

}  // namespace

void add_run(CLI::App& galley, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = galley.add_subcommand(
      "run",
      "Answers a file of requests with a model, many at once. IN and OUT are JSON lines in the "
      "form of OpenAI's batches, with the urls /v1/chat/completions, /v1/responses, "
      "/v1/messages and /v1/completions; answers come in the order they end. A line that cannot be "
      "answered has an "
      "error object for an answer. A run that was stopped, however rudely, goes on with the same "
      "command: what is in OUT is not asked again.");
  command->add_option("IN", flags->input, "Requests, one a line; - is standard input.")->required();
  command->add_option("OUT", flags->output, "Answers, appended one a line.")->required();
  command->add_option("--model", flags->model, "Folder of a checkpoint; requests name it so.")
      ->required();
  command->add_option("--tokenizer", flags->tokenizer,
                      "A tokenizer.json. Default: the checkpoint's own.");
  command->add_option("--slots", flags->slots, "Requests that are answered at once. Default: 8.")
      ->check(integer_in(1, kSlotsMax));
  command
      ->add_option("--context-tokens", flags->context_tokens,
                   "Longest prompt and answer together. Default: what the model was made for.")
      ->check(integer_in(1, kContextTokensMax));
  command
      ->add_option("--cache", flags->cache,
                   "Memory for what prompts leave behind, so that a common beginning is computed "
                   "once. Default: 1GiB.")
      ->check([](const std::string& text) {
        const auto bytes = parse_bytes(text);
        return bytes ? std::string() : to_string(bytes.error());
      });
  command->callback([flags, &exit_code] {
    if (const auto done = run(*flags); !done) {
      exit_code = report(done.error());
    }
  });
}

}  // namespace galley::apps
