#include "gateway/sources/foreign.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fmt/core.h>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutex.h"
#include "base/task_pool.h"
#include "gateway/http_client.h"
#include "gateway/sources/resume.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;
using recipe::SourceFinish;

// How late a wait, a silence or a deadline may be noticed. New work and bytes are noticed at once.
constexpr Duration kTick = 50ms;
constexpr Duration kHealthEvery = 1s;
// Some engines make a token before they say that they are well.
constexpr Duration kHealthPatience = 20s;
// An engine that has ended an answer may end its stream, so that the connection can be used again.
constexpr Duration kStreamEndWithin = 1s;
constexpr std::string_view kStreamEnd = "[DONE]";

// A generation, its sink, and what has become of it. Shared by its handle and the thread.
class Asked {
 public:
  Asked(recipe::Generation new_generation, recipe::TokenSink& sink)
      : generation(std::move(new_generation)), sink_(&sink) {}

  // Once it has returned, the sink is not called any more.
  void cancel() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    sink_ = nullptr;
  }
  [[nodiscard]] bool over() GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    return sink_ == nullptr;
  }
  void fail_with(Error error) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (sink_ != nullptr) {
      std::exchange(sink_, nullptr)->on_error(std::move(error));
    }
  }
  // Hands on what `piece` brings, up to a stop id and max_tokens, and the end.
  void take(DialectPiece piece) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (sink_ == nullptr) {
      return;
    }
    ended_itself = piece.finish.has_value();
    if (!std::exchange(started_, true)) {
      const auto prompt = std::ssize(generation.prompt);
      sink_->on_start({.prompt_tokens = prompt,
                       .cached_tokens = std::min(piece.cached_tokens.value_or(0), prompt)});
    }
    const auto stop = std::ranges::find_first_of(piece.ids, generation.stop_ids);
    if (stop != piece.ids.end()) {
      piece.ids.erase(stop, piece.ids.end());
      piece.finish = SourceFinish::kStop;
    }
    const auto room = static_cast<std::size_t>(generation.max_tokens) - delivered.size();
    if (piece.ids.size() > room || (piece.ids.size() == room && !piece.finish)) {
      piece.ids.resize(room);
      piece.finish = SourceFinish::kLength;
    }
    if (!piece.ids.empty()) {
      delivered.insert(delivered.end(), piece.ids.begin(), piece.ids.end());
      attempts.fruitless = 0;
      lost.reset();
      sink_->on_tokens(piece.ids, {});
    }
    if (piece.finish) {
      std::exchange(sink_, nullptr)->on_finish(*piece.finish);
    }
  }

  const recipe::Generation generation;

  // Of the thread.
  std::vector<TokenId> delivered;
  Attempts attempts;
  TimeNs due{};                          // of the next attempt, while none is under way
  std::optional<TimeNs> lost;            // when the engine failed first, since the last token
  std::optional<std::uint64_t> request;  // the one under way
  TimeNs heard{};                        // when it last brought something
  bool ended_itself = false;             // the engine has ended the answer
  SseReader events;
  std::unique_ptr<DialectReader> reader;

 private:
  bool started_ = false;  // of the thread
  Mutex mutex_;
  recipe::TokenSink* sink_ GALLEY_GUARDED_BY(mutex_);  // null: the generation is over
};

// Whatever else is wrong between the engine and us, as our key or a reply past a bound, is not for
// the client to mend.
Error for_client(std::string_view engine, Error error) {
  constexpr std::array kTold{Code::kInvalidArgument, Code::kOverloaded, Code::kDeadlineExceeded,
                             Code::kInternal};
  if (std::ranges::find(kTold, error.code) == kTold.end()) {
    error.code = Code::kUnavailable;
  }
  return std::move(in_step(engine, std::move(error)).error());
}

}  // namespace

class ForeignSource::Impl {
 public:
  Impl(std::unique_ptr<const Dialect> dialect,
       std::shared_ptr<const recipe::Tokenizer> tokenizer,
       const Clock& clock,
       Metrics& metrics,
       Log& log,
       ForeignOptions options)
      : dialect_(std::move(dialect)),
        tokenizer_(std::move(tokenizer)),
        clock_(clock),
        log_(log),
        options_(std::move(options)),
        description_(fmt::format("{} at {}", dialect_->name(), options_.url)),
        up_(metrics.gauge("galley_foreign_ready_ratio",
                          "1 while the other engine answers, else 0.")),
        repeats_(metrics.counter("galley_foreign_attempts_repeated_total",
                                 "Requests to another engine that failed and were made again.")) {
    const bool posted = thread_.try_post([this] { run(); });
    GALLEY_ASSERT(posted);
  }
  ~Impl() {
    stopping_ = true;
    client_.wake();
    thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<std::unique_ptr<recipe::ActiveGeneration>> start(recipe::Generation generation,
                                                          recipe::TokenSink& sink);
  [[nodiscard]] bool ready() const { return ready_; }
  [[nodiscard]] std::string_view description() const { return description_; }

 private:
  class Handle;
  using Shared = std::shared_ptr<Asked>;  // owners: the handle, new_ and then asked_

  void run();
  void take_new() GALLEY_EXCLUDES(mutex_);
  // False once nothing is left to do for it.
  bool step(const Shared& asked);
  void attempt(const Shared& asked);
  Result<void> on_bytes(Asked& asked, std::string_view bytes);
  void on_end(Asked& asked, Result<void> ended);
  void ask_health();
  void on_health(Result<void> answered);

  const std::unique_ptr<const Dialect> dialect_;
  const std::shared_ptr<const recipe::Tokenizer> tokenizer_;  // shared with the codec
  const Clock& clock_;
  Log& log_;
  const ForeignOptions options_;
  const std::string description_;
  Gauge up_;
  Counter repeats_;
  std::atomic<bool> stopping_ = false;
  std::atomic<bool> ready_ = false;
  std::atomic<std::size_t> under_way_ = 0;  // in new_ and asked_

  Mutex mutex_;
  std::vector<Shared> new_ GALLEY_GUARDED_BY(mutex_);

  // Of the thread. Silence is looked after here, as it is another thing than no bytes.
  HttpClient client_{{.silence = std::chrono::hours(24)}};
  std::list<Shared> asked_;
  std::optional<std::uint64_t> health_;  // the question under way
  TimeNs health_due_{};                  // of the next one, or when this one has taken too long
  bool told_ = false;                    // whether the log has the engine's state
  TimeNs token_at_{};                    // when the engine last sent something

  TaskPool thread_{1, 1};  // last: joined before all that it uses goes
};

class ForeignSource::Impl::Handle final : public recipe::ActiveGeneration {
 public:
  Handle(Impl& source, Shared asked) : source_(source), asked_(std::move(asked)) {}
  ~Handle() override {
    asked_->cancel();
    source_.client_.wake();
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

 private:
  Impl& source_;
  Shared asked_;
};

Result<std::unique_ptr<recipe::ActiveGeneration>> ForeignSource::Impl::start(
    recipe::Generation generation, recipe::TokenSink& sink) {
  GALLEY_CHECK_OK(check_for_dialects(generation));
  if (!ready_) {
    return fail(Code::kUnavailable, fmt::format("{} does not answer", dialect_->name()));
  }
  if (under_way_.fetch_add(1) >= options_.requests_max) {
    --under_way_;
    return fail(Code::kOverloaded, fmt::format("{} requests are under way at {}, as many as may be",
                                               options_.requests_max, dialect_->name()));
  }
  auto asked = std::make_shared<Asked>(std::move(generation), sink);
  {
    const MutexLock lock(mutex_);
    new_.push_back(asked);
  }
  client_.wake();
  return std::make_unique<Handle>(*this, std::move(asked));
}

void ForeignSource::Impl::run() {
  while (!stopping_) {
    take_new();
    ask_health();
    std::erase_if(asked_, [this](const Shared& asked) {
      const bool done = !step(asked);
      under_way_ -= done ? 1 : 0;
      return done;
    });
    client_.run(kTick);
  }
  client_.stop();
}

void ForeignSource::Impl::take_new() {
  const MutexLock lock(mutex_);
  for (Shared& asked : new_) {
    asked_.push_back(std::move(asked));
  }
  new_.clear();
}

bool ForeignSource::Impl::step(const Shared& asked) {
  const TimeNs now = clock_.now();
  const auto& deadline = asked->generation.deadline;
  if (deadline && now >= *deadline) {
    asked->fail_with({.code = Code::kDeadlineExceeded, .what = "the request took too long"});
  }
  if (asked->over()) {
    if (asked->request && asked->ended_itself && now - asked->heard < kStreamEndWithin) {
      return true;
    }
    if (asked->request) {
      client_.cancel(*asked->request);
    }
    return false;
  }
  if (!asked->request) {
    if (asked->lost && !ready_ && now - *asked->lost > options_.gone_max) {
      asked->fail_with(
          {.code = Code::kUnavailable, .what = fmt::format("{} is gone", dialect_->name())});
    } else if (now >= asked->due && (!asked->lost || (ready_ && !health_))) {
      attempt(asked);
    }
  } else if (now - asked->heard > options_.silence_max) {
    client_.cancel(*asked->request);
    on_end(*asked, fail(Code::kUnavailable,
                        fmt::format("sent nothing for {}", to_string(options_.silence_max))));
  }
  return true;
}

void ForeignSource::Impl::attempt(const Shared& asked) {
  ++asked->attempts.made;
  ++asked->attempts.fruitless;
  asked->heard = clock_.now();
  asked->events = {};
  asked->reader = dialect_->reader(asked->generation);
  HttpAsk ask{.url = options_.url + std::string(dialect_->path()),
              .body = dialect_->body(asked->generation, asked->delivered),
              .key = options_.key,
              .streams = true,
              .direct = true};
  if (!asked->generation.request_id.empty()) {
    ask.headers.push_back("x-request-id: " + asked->generation.request_id);
  }
  if (!asked->generation.traceparent.empty()) {
    ask.headers.push_back("traceparent: " + asked->generation.traceparent);
  }
  Asked* const plain = asked.get();  // stays in asked_ while its request is under way
  asked->request = client_.start(
      ask, {.on_bytes = [this, plain](std::string_view bytes) { return on_bytes(*plain, bytes); },
            .on_end =
                [this, plain](Result<void> ended) {
                  if (plain->over()) {
                    plain->request.reset();
                  } else {
                    on_end(*plain, std::move(ended));
                  }
                }});
}

Result<void> ForeignSource::Impl::on_bytes(Asked& asked, std::string_view bytes) {
  Result<void> result;
  GALLEY_CHECK_OK(asked.events.feed(bytes, [&](std::string_view data) {
    if (!result || data == kStreamEnd || asked.over()) {
      return;
    }
    const auto event = recipe::parse_json(data);
    if (!event) {
      result = fail(Code::kInternal, "its event is no JSON: " + event.error().what);
      return;
    }
    auto piece = asked.reader->read(*event);
    if (!piece) {
      result = std::unexpected(std::move(piece).error());
      return;
    }
    const std::size_t vocabulary = tokenizer_->vocabulary_size();
    const auto unknown =
        std::ranges::find_if(piece->ids, [&](TokenId id) { return id >= vocabulary; });
    if (unknown != piece->ids.end()) {
      result = fail(Code::kInternal,
                    fmt::format("sends token {} where this server's vocabulary has {}: is it the "
                                "tokenizer of its model?",
                                *unknown, vocabulary));
      return;
    }
    if (!piece->ids.empty() || piece->cached_tokens || piece->finish) {
      asked.heard = token_at_ = clock_.now();
    }
    asked.take(std::move(*piece));
  }));
  return result;
}

void ForeignSource::Impl::on_end(Asked& asked, Result<void> ended) {
  asked.request.reset();
  if (ended) {
    ended = fail(Code::kUnavailable, "its stream ended before the answer did");
  }
  const bool too_large = ended.error().code == Code::kTooLarge;  // and would be again
  Error error = for_client(dialect_->name(), std::move(ended).error());
  if (!too_large && tries_again(error.code, asked.attempts) &&
      can_go_on(asked.generation, asked.delivered.size())) {
    repeats_.add();
    log_.warn("asks another engine again", {{"engine", dialect_->name()},
                                            {"request", asked.generation.request_id},
                                            {"delivered", asked.delivered.size()},
                                            {"reason", error.what}});
    const TimeNs now = clock_.now();
    asked.due = now + wait_before(asked.attempts);
    asked.lost = asked.lost.value_or(now);
    // It may have gone: what to do depends on its health, which is asked for before anything else.
    health_due_ = health_ ? health_due_ : now;
    return;
  }
  asked.fail_with(std::move(error));
}

void ForeignSource::Impl::ask_health() {
  const TimeNs now = clock_.now();
  if (now < health_due_) {
    return;
  }
  if (health_) {
    client_.cancel(*std::exchange(health_, std::nullopt));
    if (now - token_at_ < kHealthPatience) {
      on_health({});  // busy with a long prompt is not ill
    } else {
      on_health(fail(Code::kUnavailable, "is silent for " + to_string(kHealthPatience)));
    }
    return;
  }
  health_due_ = now + kHealthPatience;
  health_ = client_.start(
      {.url = options_.url + std::string(kHealthPath), .key = options_.key, .direct = true},
      {.on_bytes = [](std::string_view) { return Result<void>(); },
       .on_end =
           [this](Result<void> answered) {
             health_.reset();
             on_health(std::move(answered));
           }});
}

void ForeignSource::Impl::on_health(Result<void> answered) {
  health_due_ = clock_.now() + kHealthEvery;
  const bool well = answered.has_value();
  up_.set(well ? 1 : 0);
  if (ready_.exchange(well) != well || !std::exchange(told_, true)) {
    if (well) {
      log_.info("another engine answers", {{"engine", dialect_->name()}, {"url", options_.url}});
    } else {
      log_.warn(
          "another engine does not answer",
          {{"engine", dialect_->name()}, {"url", options_.url}, {"reason", answered.error().what}});
    }
  }
}

ForeignSource::ForeignSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ForeignSource::~ForeignSource() = default;

Result<std::unique_ptr<ForeignSource>> ForeignSource::create(
    std::unique_ptr<const Dialect> dialect,
    std::shared_ptr<const recipe::Tokenizer> tokenizer,
    const Clock& clock,
    Metrics& metrics,
    Log& log,
    ForeignOptions options) {
  GALLEY_CHECK_OK(check_server_url(options.url, "engine.url"));
  while (options.url.ends_with('/')) {
    options.url.pop_back();
  }
  return std::unique_ptr<ForeignSource>(new ForeignSource(std::make_unique<Impl>(
      std::move(dialect), std::move(tokenizer), clock, metrics, log, std::move(options))));
}

Result<std::unique_ptr<recipe::ActiveGeneration>> ForeignSource::start(
    recipe::Generation generation, recipe::TokenSink& sink) {
  return impl_->start(std::move(generation), sink);
}

bool ForeignSource::ready() const {
  return impl_->ready();
}

std::string_view ForeignSource::description() const {
  return impl_->description();
}

}  // namespace galley::gateway
