#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/commands.h"
#include "apps/input.h"
#include "apps/local_answer.h"
#include "apps/model_source.h"
#include "apps/number_flag.h"
#include "base/quote.h"
#include "base/real_clock.h"
#include "engine/evaluation.h"
#include "gateway/codec.h"
#include "recipe/json.h"
#include "recipe/limits.h"

namespace galley::apps {
namespace {

// The longest answer; a model that never ends costs no more than this.
constexpr std::int64_t kAnswerTokensMax = 512;

// A prompt in one piece. No context is longer.
constexpr std::size_t kOnePiece = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kSmallPiece = 48;

// A way to compute the same answers.
struct Mode {
  std::string name;
  engine::SingleSequenceOptions options;
};

std::vector<Mode> all_modes() {
  using model::WindowRebuild;
  return {
      {"cold", {.prefill_chunk = kOnePiece, .drafts = false}},
      {"chunked", {.prefill_chunk = kSmallPiece, .drafts = false}},
      {"drafts", {.prefill_chunk = kOnePiece}},
      {"bounded",
       {.prefill_chunk = kOnePiece, .drafts = false, .rebuild = WindowRebuild::kBounded}},
      {"exact", {.prefill_chunk = kOnePiece, .drafts = false, .rebuild = WindowRebuild::kExact}},
      {"stored", {.prefill_chunk = kOnePiece, .drafts = false, .rebuild = WindowRebuild::kStored}},
  };
}

struct Flags {
  std::string model;
  std::string suite;
  std::string tokenizer;
  std::string wrong;
  std::vector<std::string> modes{"drafts"};
  std::vector<std::string> kinds;
  std::int64_t samples = std::numeric_limits<std::int64_t>::max();
  bool json = false;
};

// What one mode said to every question, in their order, and what it took.
struct Outcome {
  std::string mode;
  std::vector<engine::EvalResult> results;
  std::vector<std::string> failures;  // questions that could not be asked, and why
  engine::SingleSequenceStats stats;
};

std::string body_of(const engine::EvalCase& question, const std::string& model) {
  recipe::JsonObject body = question.request;
  recipe::set_member(body, "model", model);
  recipe::set_member(body, "temperature", 0);
  return recipe::to_json(recipe::Json(std::move(body)));
}

// A line that is written over, on a terminal only.
void show_progress(const std::string& mode, std::size_t done, std::size_t all) {
  if (::isatty(STDERR_FILENO) == 0) {
    return;
  }
  constexpr std::size_t kWidth = 30;
  const std::size_t full = kWidth * done / all;
  fmt::print(stderr, "\r{:<8} [{}{}] {} of {} ", mode, std::string(full, '#'),
             std::string(kWidth - full, '.'), done, all);
  if (done == all) {
    fmt::print(stderr, "\r{:78}\r", "");
  }
  std::fflush(stderr);
}

Result<AnswerFigures> ask(const engine::EvalCase& question,
                          const LoadedModel& model,
                          recipe::TokenSource& source,
                          const gateway::Codec& codec,
                          const Clock& clock,
                          engine::EvalAnswer& answer) {
  GALLEY_TRY(gateway::Prepared prepared,
             codec.prepare(recipe::Protocol::kChat, body_of(question, model.name)));
  // What the model does unhelped is what is measured: nothing enforced, nothing cut out.
  prepared.generation.constraint = {};
  prepared.generation.grammar = {};
  prepared.request.output.json_output = false;
  prepared.generation.max_tokens = std::min(prepared.generation.max_tokens, kAnswerTokensMax);
  return answer_here(std::move(prepared), model.tokenizer, source, clock, answer,
                     [] { return false; });
}

Result<Outcome> ask_all(const Flags& flags,
                        const Mode& mode,
                        std::span<const engine::EvalCase> questions,
                        const Clock& clock) {
  GALLEY_TRY(LoadedModel model, load_model(flags.model, flags.tokenizer));
  GALLEY_TRY(const auto source, make_single_sequence(model, mode.options, clock));
  recipe::CodecOptions options;
  options.models = {{model.name, model.version}};
  GALLEY_TRY(const auto codec,
             gateway::Codec::create(model.tokenizer, std::move(options), source->context_tokens()));
  Outcome out{.mode = mode.name, .results = {}, .failures = {}, .stats = {}};
  for (const engine::EvalCase& question : questions) {
    show_progress(out.mode, out.results.size(), questions.size());
    engine::EvalResult& result = out.results.emplace_back();
    auto asked = ask(question, model, *source, *codec, clock, result.answer);
    if (!asked) {  // a wrong answer; the others are not lost for it
      out.failures.push_back(fmt::format("line {}: {}", question.line, to_string(asked.error())));
    }
    result.verdict = engine::judge(question, result.answer);
  }
  show_progress(out.mode, questions.size(), questions.size());
  out.stats = source->stats();
  return out;
}

std::string suite_path(const Flags& flags) {
  return flags.suite.empty() ? (std::filesystem::path(flags.model) / "eval.jsonl").string()
                             : flags.suite;
}

// The suite's questions that are asked: of the kinds named, the first `samples` of each.
Result<std::vector<engine::EvalCase>> choose(const Flags& flags) {
  const std::string path = suite_path(flags);
  GALLEY_TRY(const std::string text, read_input(path));
  auto suite = engine::parse_eval_suite(text);
  if (!suite) {
    Error error = std::move(suite).error();
    error.where = error.where.empty() ? path : fmt::format("{}, {}", path, error.where);
    return std::unexpected(std::move(error));
  }
  std::map<std::string, std::int64_t> seen;
  for (const engine::EvalCase& question : *suite) {
    seen.try_emplace(question.kind, 0);
  }
  for (const std::string& kind : flags.kinds) {
    if (!seen.contains(kind)) {
      return fail(Code::kNotFound, fmt::format("has no questions of kind {}", kind), path);
    }
  }
  std::erase_if(*suite, [&](const engine::EvalCase& question) {
    return (!flags.kinds.empty() &&
            std::ranges::find(flags.kinds, question.kind) == flags.kinds.end()) ||
           ++seen[question.kind] > flags.samples;
  });
  return suite;
}

double tokens_a_verification(const engine::SingleSequenceStats& stats) {
  return 1 + static_cast<double>(stats.drafts_accepted) / static_cast<double>(stats.decode_steps);
}

// An MTP layer tells none.
bool tells_confidences(const engine::SingleSequenceStats& stats) {
  return std::ranges::any_of(stats.confidence,
                             [](const engine::ConfidenceBin& bin) { return bin.drafts > 0; });
}

void print_table(std::span<const engine::EvalGroup> groups, std::span<const Outcome> outcomes) {
  const Outcome& first = outcomes.front();
  fmt::print("{:<12} {:>9}  {:>9}  {:>9}", "kind", "questions", first.mode, "formed");
  for (const Outcome& mode : outcomes.subspan(1)) {
    fmt::print("  {:>9}  {:>6}", mode.mode, "differ");
  }
  fmt::print("\n");
  for (const engine::EvalGroup& group : groups) {
    const engine::EvalScore own = engine::score(group, first.results, first.results);
    fmt::print("{:<12} {:>9}  {:>9.1f}  {:>9.1f}", harmless(group.name), group.questions.size(),
               own.right, own.formed);
    for (const Outcome& mode : outcomes.subspan(1)) {
      const engine::EvalScore other = engine::score(group, mode.results, first.results);
      fmt::print("  {:>9.1f}  {:>6}", other.right, other.differ);
    }
    fmt::print("\n");
  }
  fmt::print(
      "\nright answers and well-formed ones in %; differ: answers that are not those of `{}`\n",
      first.mode);
  for (const Outcome& mode : outcomes) {
    if (mode.stats.drafts_verified > 0) {
      fmt::print("{}: {:.2f} tokens a verification", mode.mode, tokens_a_verification(mode.stats));
      if (tells_confidences(mode.stats)) {
        fmt::print("; chances of drafts off by {:.1f} % (ECE, {} bins)",
                   100 * engine::calibration_error(mode.stats.confidence), engine::kConfidenceBins);
      }
      fmt::print("\n");
    }
  }
}

void print_json(std::span<const engine::EvalGroup> groups, std::span<const Outcome> outcomes) {
  recipe::JsonArray modes;
  for (const Outcome& mode : outcomes) {
    recipe::JsonArray kinds;
    for (const engine::EvalGroup& group : groups) {
      const engine::EvalScore one = engine::score(group, mode.results, outcomes.front().results);
      kinds.push_back(recipe::JsonObject{{"kind", group.name},
                                         {"questions", std::ssize(group.questions)},
                                         {"right", one.right},
                                         {"well_formed", one.formed},
                                         {"differ", one.differ}});
    }
    recipe::JsonObject out{{"mode", mode.mode},
                           {"kinds", std::move(kinds)},
                           {"failed", std::ssize(mode.failures)},
                           {"prompt_tokens_computed", mode.stats.prompt_tokens}};
    if (mode.stats.drafts_verified > 0) {
      out.push_back({"tokens_a_verification", tokens_a_verification(mode.stats)});
    }
    if (tells_confidences(mode.stats)) {
      out.push_back({"calibration_error", engine::calibration_error(mode.stats.confidence)});
    }
    modes.push_back(std::move(out));
  }
  fmt::print("{}\n", recipe::to_json(recipe::JsonObject{{"modes", std::move(modes)}}));
}

recipe::Json said(const engine::EvalAnswer& answer) {
  recipe::JsonObject out{{"content", answer.content}};
  if (!answer.reasoning.empty()) {
    out.push_back({"reasoning_content", answer.reasoning});
  }
  recipe::JsonArray calls;
  std::ranges::transform(answer.calls, std::back_inserter(calls), [](const auto& call) {
    return recipe::JsonObject{{"name", call.name}, {"arguments", call.arguments}};
  });
  if (!calls.empty()) {
    out.push_back({"calls", std::move(calls)});
  }
  return out;
}

using File = std::unique_ptr<std::FILE, decltype(&std::fclose)>;

Result<File> open_wrong(const std::string& path) {
  File file(path.empty() ? nullptr : std::fopen(path.c_str(), "w"), &std::fclose);
  if (!path.empty() && file == nullptr) {
    return fail(Code::kUnavailable, "cannot be written", path);
  }
  return file;
}

// The wrong answers of the first mode, one JSON object a line.
Result<void> write_wrong(const File& file,
                         const std::string& path,
                         std::span<const engine::EvalCase> questions,
                         const Outcome& outcome) {
  bool good = true;
  for (std::size_t i = 0; good && i < questions.size(); ++i) {
    if (outcome.results[i].verdict.right) {
      continue;
    }
    const std::string line = recipe::to_json(recipe::JsonObject{
        {"line", static_cast<std::int64_t>(questions[i].line)},
        {"kind", questions[i].kind},
        {"request", questions[i].request},
        {"said", said(outcome.results[i].answer)},
    });
    good = std::fputs((line + "\n").c_str(), file.get()) >= 0;
  }
  if (!good || std::fflush(file.get()) != 0) {
    return fail(Code::kUnavailable, "cannot be written", path);
  }
  return {};
}

// False when a question could not be asked.
Result<bool> evaluate(const Flags& flags) {
  GALLEY_TRY(const auto questions, choose(flags));
  const RealClock clock;
  const std::vector<Mode> all = all_modes();
  std::vector<Mode> modes;
  for (const std::string& name : flags.modes) {
    modes.push_back(*std::ranges::find(all, name, &Mode::name));
    // What cannot be computed for this model is said before hours are spent.
    GALLEY_TRY(LoadedModel model, load_model(flags.model, flags.tokenizer));
    GALLEY_TRY(const auto source, make_single_sequence(model, modes.back().options, clock));
    if (modes.size() == 1) {
      report_packed(model.packed);
    }
  }
  std::error_code error;
  if (std::filesystem::equivalent(suite_path(flags), flags.wrong, error)) {
    return fail(Code::kInvalidArgument, "is the suite itself", flags.wrong);
  }
  GALLEY_TRY(const File wrong, open_wrong(flags.wrong));
  std::vector<Outcome> outcomes;
  for (const Mode& mode : modes) {
    GALLEY_TRY(Outcome outcome, ask_all(flags, mode, questions, clock));
    outcomes.push_back(std::move(outcome));
  }
  (flags.json ? print_json : print_table)(engine::groups_of(questions), outcomes);
  bool complete = true;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.failures.empty()) {
      complete = false;
      fmt::print(stderr, "galley: {}: {} questions failed; {}\n", outcome.mode,
                 outcome.failures.size(), harmless(outcome.failures.front()));
    }
  }
  if (wrong != nullptr) {
    GALLEY_CHECK_OK(write_wrong(wrong, flags.wrong, questions, outcomes.front()));
  }
  return complete;
}

}  // namespace

void add_model_eval(CLI::App& model, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command = model.add_subcommand(
      "eval", "Asks a model the questions of a suite, greedily, and counts right answers by kind.");
  command->add_option("DIR", flags->model, "Folder of a checkpoint.")->required();
  command->add_option("--suite", flags->suite, "JSON lines of questions. Default: DIR/eval.jsonl.");
  command->add_option("--tokenizer", flags->tokenizer,
                      "A tokenizer.json. Default: the checkpoint's own.");
  command->add_option("--kinds", flags->kinds, "Only these kinds of questions, comma between.")
      ->delimiter(',')
      ->allow_extra_args(false);
  command->add_option("--samples", flags->samples, "Only so many questions of each kind.")
      ->check(integer_in(1, std::numeric_limits<std::int64_t>::max()));
  std::vector<std::string> names;
  for (const Mode& mode : all_modes()) {
    names.emplace_back(mode.name);
  }
  command
      ->add_option(
          "--modes", flags->modes,
          "Ways to compute the answers, comma between; the first is what the others are "
          "compared with. cold: prompt in one piece; chunked: in pieces of 48 tokens; "
          "drafts: with drafts; bounded, exact, stored: as after a cache hit whose windows "
          "are rebuilt so. Default: drafts.")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::IsMember(names));
  command->add_flag("--json", flags->json, "Prints one JSON object instead of a table.");
  command->add_option("--wrong", flags->wrong, "Writes the wrong answers there as JSON lines.");
  command->callback([flags, &exit_code] {
    const auto done = evaluate(*flags);
    exit_code = !done ? report(done.error()) : *done ? 0 : kExitFailure;
  });
}

}  // namespace galley::apps
