#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fmt/core.h>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <unistd.h>
#include <utility>
#include <variant>
#include <vector>

#include <CLI/CLI.hpp>

#include "apps/chat_input.h"
#include "apps/commands.h"
#include "apps/input.h"
#include "apps/introduction.h"
#include "apps/local_answer.h"
#include "apps/model_source.h"
#include "apps/number_flag.h"
#include "apps/remote.h"
#include "apps/token_text.h"
#include "base/quote.h"
#include "base/real_clock.h"
#include "gateway/codec.h"
#include "recipe/json.h"
#include "recipe/limits.h"

// A conversation in the terminal.
namespace galley::apps {
namespace {

struct Flags {
  std::string model;
  std::string url;
  std::string key;
  std::string name;
  std::string tokenizer;
  std::string system;
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<std::int64_t> seed;
  std::optional<std::int64_t> max_tokens;
  bool no_thinking = false;
};

constexpr const char* kHelp =
    "  /new           forget the conversation\n"
    "  /system TEXT   forget it and set the system prompt; without TEXT, none\n"
    "  /stats         what the last answer took\n"
    "  /help          this\n"
    "  /exit          leave, as Ctrl-D does\n"
    "  Ctrl-C         stops an answer\n";

constexpr const char* kDim = "\x1b[2m";
constexpr const char* kPlain = "\x1b[0m";

// Prints an answer as it comes, reasoning dimmed, and keeps it for the next turn.
class Printer final : public recipe::EventSink {
 public:
  explicit Printer(bool colour) : colour_(colour) {}

  void on_event(const recipe::Event& event) override {
    if (const auto* reasoning = std::get_if<recipe::ReasoningText>(&event)) {
      show(reasoning->text, true);
      reasoning_ += reasoning->text;
    } else if (const auto* content = std::get_if<recipe::ContentText>(&event)) {
      show(content->text, false);
      content_ += content->text;
    } else if (const auto* finished = std::get_if<recipe::Finished>(&event)) {
      reason_ = finished->reason;
    }
  }

  // Ends the line.
  void end(std::string_view note) {
    show(note, true);
    set_dim(false);
    fmt::print("\n");
    std::fflush(stdout);
  }
  [[nodiscard]] const std::string& reasoning() const { return reasoning_; }
  [[nodiscard]] const std::string& content() const { return content_; }
  [[nodiscard]] std::optional<recipe::FinishReason> reason() const { return reason_; }

 private:
  void show(std::string_view text, bool dim) {
    if (text.empty()) {
      return;
    }
    if (dim != dim_ && printed_) {
      fmt::print("\n");  // between reasoning and answer
    }
    set_dim(dim);
    fmt::print("{}", harmless(text));
    printed_ = true;
    std::fflush(stdout);
  }
  void set_dim(bool dim) {
    if (dim != dim_ && colour_) {
      fmt::print("{}", dim ? kDim : kPlain);
    }
    dim_ = dim;
  }

  bool colour_;
  bool dim_ = false;
  bool printed_ = false;
  std::string reasoning_;
  std::string content_;
  std::optional<recipe::FinishReason> reason_;
};

double seconds(Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

// What an answer took, wherever it was made.
struct Took {
  AnswerFigures figures;
  std::int64_t drafts_verified = 0;
  std::int64_t drafts_accepted = 0;
};

// Answers a Chat Completions body; events and `stop` as answer_here() has them.
using Answerer = std::function<Result<Took>(
    recipe::JsonObject body, recipe::EventSink& events, const std::function<bool()>& stop)>;

class Chat {
 public:
  // `model` is the name to ask for.
  Chat(Flags flags, std::string model, Answerer answerer)
      : flags_(std::move(flags)),
        model_(std::move(model)),
        answerer_(std::move(answerer)),
        colour_(use_colour()) {
    forget();
  }

  // False when a question failed and nobody is there to ask again.
  bool run(bool terminal) {
    ChatInput input(terminal);
    bool all_answered = true;
    while (auto line = input.read("> ")) {
      if (line->interrupted || line->text.find_first_not_of(" \t\r") == std::string::npos) {
        fmt::print("{}", line->interrupted ? "\n" : "");
      } else if (line->text.starts_with('/')) {
        if (!command(line->text)) {
          break;
        }
      } else if (const auto done = ask(line->text); !done) {
        report(done.error());
        all_answered = false;
      }
    }
    fmt::print("{}", terminal ? "\n" : "");
    return terminal || all_answered;
  }

 private:
  void forget() {
    messages_.clear();
    if (!flags_.system.empty()) {
      messages_.push_back(recipe::JsonObject{{"role", "system"}, {"content", flags_.system}});
    }
  }

  // False to leave.
  bool command(const std::string& line) {
    const std::size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    if (name == "/exit") {
      return false;
    }
    if (name == "/new") {
      forget();
    } else if (name == "/system") {
      flags_.system = space == std::string::npos ? "" : line.substr(space + 1);
      forget();
    } else if (name == "/stats") {
      print_stats();
    } else if (name == "/help") {
      fmt::print("{}", kHelp);
    } else {
      fmt::print("{} is no command; /help lists them\n", harmless(name));
    }
    std::fflush(stdout);
    return true;
  }

  [[nodiscard]] recipe::JsonObject body() const {
    recipe::JsonObject body{{"model", model_}, {"messages", messages_}};
    if (flags_.temperature) {
      body.push_back({"temperature", *flags_.temperature});
    }
    if (flags_.top_p) {
      body.push_back({"top_p", *flags_.top_p});
    }
    if (flags_.seed) {
      body.push_back({"seed", *flags_.seed});
    }
    if (flags_.max_tokens) {
      body.push_back({"max_tokens", *flags_.max_tokens});
    }
    if (flags_.no_thinking) {
      body.push_back({"thinking", recipe::JsonObject{{"type", "disabled"}}});
    }
    return body;
  }

  // One turn. A question that failed is forgotten; one whose answer was stopped is kept with what
  // there is of it.
  Result<void> ask(const std::string& question) {
    messages_.push_back(recipe::JsonObject{{"role", "user"}, {"content", question}});
    Printer printer(colour_);
    const Result<void> done = answer(printer);
    if (!done) {
      messages_.pop_back();
      return done;
    }
    recipe::JsonObject message{{"role", "assistant"}, {"content", printer.content()}};
    if (!printer.reasoning().empty()) {
      message.push_back({"reasoning_content", printer.reasoning()});
    }
    messages_.push_back(std::move(message));
    return {};
  }

  Result<void> answer(Printer& printer) {
    stats_.reset();
    bool stopped = false;
    const auto took = answerer_(body(), printer, [&stopped] { return stopped = take_interrupt(); });
    printer.end(stopped                                             ? " [stopped]"
                : printer.reason() == recipe::FinishReason::kLength ? " [cut at its length]"
                                                                    : "");
    if (!took) {
      return std::unexpected(took.error());
    }
    stats_ = *took;
    return {};
  }

  void print_stats() const {
    if (!stats_) {
      fmt::print("nothing was asked yet\n");
      return;
    }
    const AnswerFigures& figures = stats_->figures;
    const double rest = seconds(figures.all - figures.first_token);
    fmt::print(
        "prompt   {} tokens, {} of them from the cache, {:.2f} s to the first of the answer\n",
        figures.prompt_tokens, figures.cached_tokens, seconds(figures.first_token));
    fmt::print("answer   {} tokens", figures.tokens);
    if (figures.tokens > 1 && rest > 0) {
      fmt::print(", {:.2f} a second", static_cast<double>(figures.tokens - 1) / rest);
    }
    fmt::print("\n");
    if (stats_->drafts_verified > 0) {
      fmt::print("drafts   {} of {} accepted\n", stats_->drafts_accepted, stats_->drafts_verified);
    }
  }

  Flags flags_;
  const std::string model_;
  const Answerer answerer_;
  const bool colour_;
  recipe::JsonArray messages_;
  std::optional<Took> stats_;  // of the last answer
};

// What the model says of itself, for a terminal.
std::string introduction(const std::filesystem::path& folder) {
  const auto read = read_introduction(folder);
  if (!read) {
    return fmt::format("(introduction.json: {})\n", harmless(to_string(read.error())));
  }
  if (!*read) {
    return "";
  }
  std::string out = harmless((*read)->about) + "\n";
  for (const std::string& question : (*read)->questions) {
    out.append("  ").append(harmless(question)).append("\n");
  }
  return out;
}

bool at_terminal() {
  return ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
}

// Against a server.
Result<bool> chat_there(const Flags& flags) {
  const RealClock clock;
  const Server server{.url = flags.url, .key = Secret(flags.key)};
  std::string model = flags.name;
  if (model.empty()) {
    GALLEY_TRY(model, first_model(server));
  }
  const bool terminal = at_terminal();
  if (terminal) {
    catch_interrupts();
    fmt::print("{} at {}. /help lists the commands.\n", harmless(model), harmless(flags.url));
    std::fflush(stdout);
  }
  const auto answer = [&](recipe::JsonObject body, recipe::EventSink& events,
                          const std::function<bool()>& stop) -> Result<Took> {
    GALLEY_TRY(const AnswerFigures figures,
               answer_there(server, std::move(body), clock, events, stop));
    return Took{.figures = figures};
  };
  return Chat(flags, model, answer).run(terminal);
}

Result<bool> chat(const Flags& flags) {
  if (!flags.url.empty()) {
    return chat_there(flags);
  }
  const bool terminal = at_terminal();
  const RealClock clock;
  GALLEY_TRY(LoadedModel model, load_model(flags.model, flags.tokenizer));
  GALLEY_TRY(const auto source, make_engine(model, {.slots = 1}, clock));
  report_packed(model.packed);
  recipe::CodecOptions options;
  options.models = {{model.name, model.version}};
  GALLEY_TRY(const auto codec,
             gateway::Codec::create(model.tokenizer, std::move(options), source->context_tokens()));
  if (terminal) {
    catch_interrupts();
    fmt::print("{}. /help lists the commands.\n{}", harmless(source->description()),
               introduction(flags.model));
    std::fflush(stdout);
  }
  const auto answer = [&](recipe::JsonObject body, recipe::EventSink& events,
                          const std::function<bool()>& stop) -> Result<Took> {
    GALLEY_TRY(gateway::Prepared prepared,
               codec->prepare(recipe::Protocol::kChat, to_json(recipe::Json(std::move(body)))));
    const engine::SchedulerStats before = source->stats();
    GALLEY_TRY(const AnswerFigures figures,
               answer_here(std::move(prepared), model.tokenizer, *source, clock, events, stop));
    const engine::SchedulerStats after = source->stats();
    return Took{.figures = figures,
                .drafts_verified = after.drafts_verified - before.drafts_verified,
                .drafts_accepted = after.drafts_accepted - before.drafts_accepted};
  };
  return Chat(flags, model.name, answer).run(terminal);
}

}  // namespace

void add_chat(CLI::App& galley, int& exit_code) {
  const auto flags = std::make_shared<Flags>();
  CLI::App* const command =
      galley.add_subcommand("chat", "A conversation with a model in the terminal.");
  CLI::Option_group* const where = command->add_option_group("Who answers");
  where->add_option("--model", flags->model, "Folder of a checkpoint.");
  CLI::Option* const url =
      where->add_option("--url", flags->url, "A server that speaks Chat Completions.");
  where->require_option(1);
  command->add_option("--key", flags->key, "API key for --url; or in the variable GALLEY_KEY.")
      ->envname("GALLEY_KEY");
  command
      ->add_option("--name", flags->name, "Model to ask for at --url. Default: the first it lists.")
      ->needs(url);
  command->add_option("--system", flags->system, "System prompt.");
  command->add_option("--tokenizer", flags->tokenizer,
                      "A tokenizer.json. Default: the checkpoint's own.");
  command->add_option("--temperature", flags->temperature, "0 to 2; 0 always says the likeliest.")
      ->check(number_in(0, 2));
  command->add_option("--top-p", flags->top_p, "Only the likeliest tokens that reach this share.")
      ->check(number_above(0, 1));
  command->add_option("--seed", flags->seed, "Makes sampled answers repeatable.")
      ->check(integer_in(0, std::numeric_limits<std::int64_t>::max()));
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer, reasoning included.")
      ->check(integer_in(1, recipe::kMaxTokensMax));
  command->add_flag("--no-thinking", flags->no_thinking, "Answer at once.");
  command->callback([flags, &exit_code] {
    const auto done = chat(*flags);
    exit_code = !done ? report(done.error()) : *done ? 0 : kExitFailure;
  });
}

}  // namespace galley::apps
