#include "apps/local_answer.h"

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "base/mutex.h"
#include "recipe/output_parser.h"

namespace galley::apps {
namespace {

// How often `stop` is asked at least.
constexpr Duration kStopPoll = std::chrono::milliseconds(50);

// What the source's thread delivers, kept for the caller's.
class Inbox final : public recipe::TokenSink {
 public:
  using Item = std::variant<recipe::Started, std::vector<TokenId>, recipe::SourceFinish, Error>;

  void on_start(const recipe::Started& started) override { add(started); }
  void on_tokens(std::span<const TokenId> ids, std::span<const recipe::TokenLogprob>) override {
    add(std::vector<TokenId>(ids.begin(), ids.end()));
  }
  void on_finish(recipe::SourceFinish reason) override { add(reason); }
  void on_error(Error error) override { add(std::move(error)); }

  // The next item; nothing when none comes within `limit`.
  std::optional<Item> take(Duration limit) GALLEY_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (items_.empty()) {
      changed_.wait_for(mutex_, limit);
    }
    if (items_.empty()) {
      return std::nullopt;
    }
    Item item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  void add(Item item) GALLEY_EXCLUDES(mutex_) {
    {
      const MutexLock lock(mutex_);
      items_.push_back(std::move(item));
    }
    changed_.notify_one();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<Item> items_ GALLEY_GUARDED_BY(mutex_);  // bounded by max_tokens
};

// Passes events on and notes the last.
class EndWatch final : public recipe::EventSink {
 public:
  explicit EndWatch(recipe::EventSink& next) : next_(next) {}
  void on_event(const recipe::Event& event) override {
    over_ = over_ || std::holds_alternative<recipe::Finished>(event);
    next_.on_event(event);
  }
  [[nodiscard]] bool over() const { return over_; }

 private:
  recipe::EventSink& next_;
  bool over_ = false;
};

// Tells the parser of one item.
Result<void> apply(Inbox::Item item,
                   recipe::OutputParser& parser,
                   Duration since_question,
                   AnswerFigures& figures) {
  if (const auto* started = std::get_if<recipe::Started>(&item)) {
    figures.prompt_tokens = started->prompt_tokens;
    figures.cached_tokens = started->cached_tokens;
    parser.start(*started);
  } else if (const auto* ids = std::get_if<std::vector<TokenId>>(&item)) {
    if (figures.tokens == 0) {
      figures.first_token = since_question;
    }
    figures.tokens += std::ssize(*ids);
    return parser.feed_tokens(*ids);
  } else if (const auto* reason = std::get_if<recipe::SourceFinish>(&item)) {
    parser.finish(*reason);
  } else {
    return std::unexpected(std::get<Error>(std::move(item)));
  }
  return {};
}

}  // namespace

Result<AnswerFigures> answer_here(gateway::Prepared prepared,
                                  std::shared_ptr<const recipe::Tokenizer> tokenizer,
                                  recipe::TokenSource& source,
                                  const Clock& clock,
                                  recipe::EventSink& events,
                                  const std::function<bool()>& stop) {
  EndWatch watch(events);
  const auto parser = recipe::OutputParser::create(prepared.request, std::move(tokenizer), watch);
  const TimeNs begin = clock.now();
  AnswerFigures figures;
  Result<void> done;
  Inbox inbox;
  GALLEY_TRY(auto active, source.start(std::move(prepared.generation), inbox));
  while (!watch.over() && done && !stop()) {
    if (auto item = inbox.take(kStopPoll)) {
      done = apply(*std::move(item), *parser, clock.now() - begin, figures);
    }
  }
  active.reset();
  if (!watch.over()) {
    parser->finish(std::nullopt);  // what was held back
  }
  if (!done) {
    return std::unexpected(std::move(done).error());
  }
  figures.all = clock.now() - begin;
  return figures;
}

}  // namespace galley::apps
