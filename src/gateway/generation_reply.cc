#include "gateway/generation_reply.h"

#include <algorithm>
#include <fmt/core.h>
#include <span>
#include <string_view>
#include <utility>

namespace galley::gateway {
namespace {

// All notes of a request, in one header of at most this many bytes.
constexpr std::size_t kNoteBytesMax = 1024;
constexpr std::string_view kRetryAfterS = "1";
// Tokens that one task parses and encodes, about a millisecond: other connections have their turn.
constexpr std::size_t kTokensPerTask = 1024;

void add_notes(const std::vector<std::string>& notes, std::vector<HttpHeader>& headers) {
  std::string text;
  for (const std::string& note : notes) {
    text.append(text.empty() ? "" : "; ").append(note);
  }
  if (text.size() > kNoteBytesMax) {
    text.resize(kNoteBytesMax - 3);
    text += "...";
  }
  if (!text.empty()) {
    headers.push_back({std::string(kNoteHeader), std::move(text)});
  }
}

void add_hit(const recipe::Started& started, std::vector<HttpHeader>& headers) {
  headers.push_back({std::string(kHitTokensHeader), std::to_string(started.cached_tokens)});
  if (started.cache_miss) {
    headers.push_back(
        {std::string(kMissHeader),
         fmt::format("{}; token={}", name(started.cache_miss->reason), started.cache_miss->token)});
  }
}

HttpResponse stream_head(const recipe::Request& request) {
  HttpResponse head{.headers = {{"content-type", "text/event-stream; charset=utf-8"},
                                {"cache-control", "no-cache"},
                                {"x-accel-buffering", "no"}}};
  add_notes(request.notes, head.headers);
  return head;
}

}  // namespace

HttpResponse error_response(recipe::Protocol protocol, recipe::Compat compat, const Error& error) {
  HttpResponse response{.status = recipe::http_status(error.code),
                        .headers = {{"content-type", "application/json"}},
                        .body = recipe::error_body(protocol, compat, error)};
  if (error.code == Code::kOverloaded || error.code == Code::kUnavailable) {
    response.headers.push_back({"retry-after", std::string(kRetryAfterS)});
  } else if (error.code == Code::kUnimplemented) {
    // Official clients ask every 5xx again otherwise.
    response.headers.push_back({"x-should-retry", "false"});
  }
  return response;
}

ReplyMetrics::ReplyMetrics(Metrics& metrics)
    : prompt_tokens(metrics.counter("galley_prompt_tokens_total", "Tokens of started prompts.")),
      cached_tokens(metrics.counter("galley_cached_tokens_total",
                                    "Prompt tokens that were not computed again.")),
      output_tokens(metrics.counter("galley_output_tokens_total", "Tokens generated.")),
      cancelled(metrics.counter("galley_cancelled_generations_total",
                                "Generations whose client left, was too slow or was cut off.")),
      failed(metrics.counter("galley_failed_generations_total",
                             "Generations that ended with an error, also as the server stopped.")),
      active(metrics.gauge("galley_active_generations", "Generations under way.")) {}

// One of the answers: what the source says of it, and what becomes of that.
class GenerationReply::Answer final : public recipe::TokenSink {
 public:
  Answer(GenerationReply& reply, recipe::ReplyInfo info)
      : choice(info.choice),
        writer(reply.request_, reply.context_.codec.tokenizer(), std::move(info)),
        reply_(reply) {}

  // Counted as they are made: what a client never reads was made, too. The place outlives the
  // generation. A prompt counts once, whoever computed it.
  void on_start(const recipe::Started& started) override {
    if (choice == 0) {
      reply_.context_.metrics.prompt_tokens.add(static_cast<double>(started.prompt_tokens));
      reply_.context_.metrics.cached_tokens.add(static_cast<double>(started.cached_tokens));
    }
    reply_.charge(started.prompt_tokens - started.cached_tokens);
    const MutexLock lock(reply_.mutex_);
    waiting_.push_start(started);
    reply_.post_pump();
  }
  void on_tokens(std::span<const TokenId> ids,
                 std::span<const recipe::TokenLogprob> logprobs) override {
    reply_.context_.metrics.output_tokens.add(static_cast<double>(ids.size()));
    reply_.charge(kAnswerTokenWeight * static_cast<std::int64_t>(ids.size()));
    const MutexLock lock(reply_.mutex_);
    if (!reply_.overflowed_) {
      const std::size_t before = waiting_.bytes();
      waiting_.push_tokens(ids, logprobs);
      reply_.waiting_bytes_ += waiting_.bytes() - before;
      if (reply_.waiting_bytes_ > reply_.context_.limits.waiting_bytes_max) {
        reply_.overflowed_ = true;  // nothing more comes in, and what is there goes soon
      }
      reply_.post_pump();
    }
  }
  void on_finish(recipe::SourceFinish reason) override {
    const MutexLock lock(reply_.mutex_);
    waiting_.push_finish(reason);
    reply_.post_pump();
  }
  void on_error(Error error) override {
    const MutexLock lock(reply_.mutex_);
    waiting_.push_error(std::move(error));
    reply_.post_pump();
  }

  bool take() GALLEY_EXCLUDES(reply_.mutex_) {
    const MutexLock lock(reply_.mutex_);
    const std::size_t before = waiting_.bytes();
    const bool there = waiting_.pop(step);
    reply_.waiting_bytes_ -= before - waiting_.bytes();
    return there;
  }
  void drop() GALLEY_EXCLUDES(reply_.mutex_) {
    const MutexLock lock(reply_.mutex_);
    reply_.waiting_bytes_ -= waiting_.bytes();
    waiting_.clear();
  }

  const std::size_t choice;
  StepQueue::Step step;  // the one at hand
  recipe::ReplyWriter writer;
  bool over = false;

 private:
  GenerationReply& reply_;
  StepQueue waiting_ GALLEY_GUARDED_BY(reply_.mutex_);

 public:
  std::unique_ptr<recipe::ActiveGeneration> active;  // last: destroyed first, it calls the above
};

void GenerationReply::begin(const std::shared_ptr<Exchange>& exchange,
                            Prepared prepared,
                            ReplyContext context,
                            std::unique_ptr<KeyQuota::Place> place) {
  if (exchange->gone()) {
    return;
  }
  const auto reply = std::make_shared<GenerationReply>(
      exchange, std::move(prepared.request), prepared.generation.tenant, context, std::move(place));
  std::vector<recipe::Generation> generations;
  std::vector<recipe::TokenSink*> sinks;
  for (const std::unique_ptr<Answer>& answer : reply->answers_) {
    const bool last = answer == reply->answers_.back();
    generations.push_back(last ? std::move(prepared.generation) : prepared.generation);
    generations.back().choice = static_cast<std::uint32_t>(answer->choice);
    sinks.push_back(answer.get());
  }
  auto active = context.source.start_choices(std::move(generations), sinks);
  if (!active) {
    exchange->respond(
        error_response(reply->request_.protocol, reply->request_.compat, active.error()));
    return;
  }
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    reply->answers_[i]->active = std::move((*active)[i]);
  }
  reply->context_.metrics.active.add(static_cast<double>(sinks.size()));
  if (context.under_way != nullptr) {
    *context.under_way += sinks.size();
  }
  if (reply->streams_) {
    exchange->start_stream(stream_head(reply->request_));
  }
  exchange->listen(reply);
}

GenerationReply::GenerationReply(std::shared_ptr<Exchange> exchange,
                                 recipe::Request request,
                                 std::string tenant,
                                 ReplyContext context,
                                 std::unique_ptr<KeyQuota::Place> place)
    : exchange_(std::move(exchange)),
      request_(std::move(request)),
      tenant_(std::move(tenant)),
      id_(new_reply_id(request_.protocol, context.ids)),
      context_(context),
      streams_(request_.stream),
      choices_(static_cast<std::size_t>(request_.sampling.n)),
      place_(std::move(place)) {
  const std::int64_t created_s = context_.clock.unix_seconds();
  for (std::size_t i = 0; i < static_cast<std::size_t>(request_.sampling.n); ++i) {
    answers_.push_back(std::make_unique<Answer>(
        *this, recipe::ReplyInfo{.id = id_,
                                 .created_s = created_s,
                                 .call_ids = &context_.ids,
                                 .clock = &context_.clock,
                                 .choice = i,
                                 .choices = request_.sampling.n > 1 ? &choices_ : nullptr}));
  }
}

GenerationReply::~GenerationReply() = default;

void GenerationReply::on_gone() {
  if (!over_) {
    context_.metrics.cancelled.add();
  }
  end();
}

void GenerationReply::on_room() {
  pump();
}

void GenerationReply::on_stop() {
  if (!over_ && !complete_) {
    fail_with({.code = Code::kUnavailable, .what = "The server is stopping. Retry later."});
  }
}

void GenerationReply::on_keep_alive() {
  if (!over_ && streams_) {
    Answer& answer = first_open();
    answer.writer.keep_alive();
    flush(answer);
  }
}

// One task carries all that comes until it runs.
void GenerationReply::post_pump() {
  if (!std::exchange(pump_posted_, true)) {
    exchange_->post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        {
          const MutexLock lock(self->mutex_);
          self->pump_posted_ = false;
        }
        self->pump();
      }
    });
  }
}

bool GenerationReply::overflowed() {
  const MutexLock lock(mutex_);
  return overflowed_;
}

void GenerationReply::pump() {
  if (!over_ && overflowed()) {
    context_.metrics.cancelled.add();
    end();
    exchange_->abort();
    return;
  }
  std::size_t tokens = 0;
  for (bool more = true; more;) {
    more = false;
    for (const std::unique_ptr<Answer>& answer : answers_) {
      if (over_ || complete_ || !has_room()) {
        return;
      }
      if (tokens >= kTokensPerTask) {
        const MutexLock lock(mutex_);
        post_pump();
        return;
      }
      if (answer->over || !answer->take()) {
        continue;
      }
      more = true;
      if (const auto* some = std::get_if<StepQueue::Tokens>(&answer->step)) {
        tokens += some->ids.size();
      }
      apply(*answer);
    }
  }
}

bool GenerationReply::has_room() const {
  return !streams_ || exchange_->unsent_bytes() < context_.limits.unsent_bytes_max;
}

GenerationReply::Answer& GenerationReply::first_open() const {
  const auto open =
      std::ranges::find_if(answers_, [](const auto& answer) { return !answer->over; });
  return **(open == answers_.end() ? answers_.begin() : open);
}

void GenerationReply::apply(Answer& answer) {
  if (const auto* started = std::get_if<recipe::Started>(&answer.step)) {
    if (answer.choice == 0) {
      started_ = *started;
    }
    answer.writer.start(*started);
  } else if (const auto* tokens = std::get_if<StepQueue::Tokens>(&answer.step)) {
    exchange_->note_token();
    if (const auto fed = answer.writer.feed_tokens(tokens->ids, tokens->logprobs); !fed) {
      fail_with(fed.error());
      return;
    }
    if (answer.writer.finished()) {  // a stop string
      complete(answer, std::nullopt);
      return;
    }
  } else if (const auto* reason = std::get_if<recipe::SourceFinish>(&answer.step)) {
    complete(answer, *reason);
    return;
  } else {
    fail_with(std::get<Error>(answer.step));
    return;
  }
  flush(answer);
}

void GenerationReply::charge(std::int64_t weighted_tokens) {
  if (place_ != nullptr) {
    place_->charge(weighted_tokens);
  }
}

void GenerationReply::complete(Answer& answer, std::optional<recipe::SourceFinish> reason) {
  answer.writer.finish(reason);
  end_answer(answer);
  if (!std::ranges::all_of(answers_, [](const auto& one) { return one->over; })) {
    return flush(answer);
  }
  complete_ = true;
  if (request_.store && context_.responses != nullptr) {
    keep(answer);
  } else {
    deliver(answer, {});
  }
}

void GenerationReply::keep(Answer& answer) {
  StoredResponse response{.id = id_,
                          .tenant = tenant_,
                          .previous_id = request_.previous_response_id.value_or(""),
                          .created_s = context_.clock.unix_seconds(),
                          .body = answer.writer.whole(),
                          .input = request_.input_items};
  context_.responses->put(std::move(response), [weak = weak_from_this(), exchange = exchange_,
                                                &answer](Result<void> kept) {
    exchange->post([weak, &answer, kept = std::move(kept)] {
      if (const auto self = weak.lock(); self && !self->over_) {
        self->deliver(answer, kept);
      }
    });
  });
}

void GenerationReply::deliver(Answer& last, const Result<void>& kept) {
  if (streams_) {
    flush(last);
    end();
    exchange_->end_stream();
    return;
  }
  HttpResponse response{.headers = {{"content-type", "application/json"}},
                        .body = std::move(last.writer.bytes())};
  std::vector<std::string> notes = request_.notes;
  if (!kept) {
    notes.insert(notes.begin(), "the response was not stored: " + kept.error().what);
  }
  add_notes(notes, response.headers);
  if (started_ && request_.compat == recipe::Compat::kGalley) {
    add_hit(*started_, response.headers);
  }
  end();
  exchange_->respond(std::move(response));
}

void GenerationReply::fail_with(const Error& error) {
  context_.metrics.failed.add();
  Answer& answer = first_open();
  end();
  if (streams_) {
    answer.writer.fail(error);
    flush(answer);
    exchange_->end_stream();
  } else {
    exchange_->respond(error_response(request_.protocol, request_.compat, error));
  }
}

void GenerationReply::flush(Answer& answer) {
  if (streams_) {
    exchange_->write(answer.writer.bytes());
    answer.writer.bytes().clear();  // keeps its memory for the next token
  }
}

void GenerationReply::end_answer(Answer& answer) {
  answer.over = true;
  if (answer.active != nullptr) {
    answer.active.reset();  // without the lock: it may wait for a call of the source that wants it
    context_.metrics.active.add(-1);
    if (context_.under_way != nullptr) {
      --*context_.under_way;
    }
  }
  answer.drop();
}

void GenerationReply::end() {
  over_ = true;
  for (const std::unique_ptr<Answer>& answer : answers_) {
    end_answer(*answer);
  }
  place_.reset();
}

}  // namespace galley::gateway
