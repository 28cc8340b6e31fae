#include "gateway/generation_reply.h"

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

void GenerationReply::begin(const std::shared_ptr<Exchange>& exchange,
                            Prepared prepared,
                            ReplyContext context,
                            std::unique_ptr<KeyQuota::Place> place) {
  if (exchange->gone()) {
    return;
  }
  const auto reply = std::make_shared<GenerationReply>(
      exchange, std::move(prepared.request), prepared.generation.tenant, context, std::move(place));
  auto active = context.source.start(std::move(prepared.generation), *reply);
  if (!active) {
    exchange->respond(
        error_response(reply->request_.protocol, reply->request_.compat, active.error()));
    return;
  }
  reply->active_ = std::move(*active);
  reply->context_.metrics.active.add(1);
  if (context.under_way != nullptr) {
    ++*context.under_way;
  }
  if (reply->writer_.streams()) {
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
      writer_(request_,
              context_.codec.tokenizer(),
              {.id = id_,
               .created_s = context_.clock.unix_seconds(),
               .call_ids = &context_.ids,
               .clock = &context_.clock}),
      place_(std::move(place)) {}

// Counted as they are made: what a client never reads was made, too. The place outlives the
// generation.
void GenerationReply::on_start(const recipe::Started& started) {
  context_.metrics.prompt_tokens.add(static_cast<double>(started.prompt_tokens));
  context_.metrics.cached_tokens.add(static_cast<double>(started.cached_tokens));
  charge(started.prompt_tokens - started.cached_tokens);
  const MutexLock lock(mutex_);
  waiting_.push_start(started);
  post_pump();
}

void GenerationReply::on_tokens(std::span<const TokenId> ids,
                                std::span<const recipe::TokenLogprob> logprobs) {
  context_.metrics.output_tokens.add(static_cast<double>(ids.size()));
  charge(kAnswerTokenWeight * static_cast<std::int64_t>(ids.size()));
  const MutexLock lock(mutex_);
  if (!overflowed_) {
    waiting_.push_tokens(ids, logprobs);
    if (waiting_.bytes() > context_.limits.waiting_bytes_max) {
      overflowed_ = true;
      waiting_.clear();
    }
    post_pump();
  }
}

void GenerationReply::on_finish(recipe::SourceFinish reason) {
  const MutexLock lock(mutex_);
  waiting_.push_finish(reason);
  post_pump();
}

void GenerationReply::on_error(Error error) {
  const MutexLock lock(mutex_);
  waiting_.push_error(std::move(error));
  post_pump();
}

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
  if (!over_ && writer_.streams()) {
    writer_.keep_alive();
    flush();
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

bool GenerationReply::take(StepQueue::Step& step) {
  const MutexLock lock(mutex_);
  return waiting_.pop(step);
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
  while (!over_ && !complete_ &&
         (!writer_.streams() || exchange_->unsent_bytes() < context_.limits.unsent_bytes_max)) {
    if (tokens >= kTokensPerTask) {
      const MutexLock lock(mutex_);
      post_pump();
      return;
    }
    if (!take(step_)) {
      return;
    }
    if (const auto* more = std::get_if<StepQueue::Tokens>(&step_)) {
      tokens += more->ids.size();
    }
    apply(step_);
  }
}

void GenerationReply::apply(StepQueue::Step& step) {
  if (const auto* started = std::get_if<recipe::Started>(&step)) {
    writer_.start(*started);
  } else if (const auto* tokens = std::get_if<StepQueue::Tokens>(&step)) {
    if (const auto fed = writer_.feed_tokens(tokens->ids, tokens->logprobs); !fed) {
      fail_with(fed.error());
      return;
    }
    if (writer_.finished()) {  // a stop string
      complete(std::nullopt);
      return;
    }
  } else if (const auto* reason = std::get_if<recipe::SourceFinish>(&step)) {
    complete(*reason);
    return;
  } else {
    fail_with(std::get<Error>(step));
    return;
  }
  flush();
}

void GenerationReply::charge(std::int64_t weighted_tokens) {
  if (place_ != nullptr) {
    place_->charge(weighted_tokens);
  }
}

void GenerationReply::complete(std::optional<recipe::SourceFinish> reason) {
  writer_.finish(reason);
  complete_ = true;
  if (request_.store && context_.responses != nullptr) {
    stop_generation();
    keep();
  } else {
    deliver({});
  }
}

void GenerationReply::keep() {
  StoredResponse response{.id = id_,
                          .tenant = tenant_,
                          .previous_id = request_.previous_response_id.value_or(""),
                          .created_s = context_.clock.unix_seconds(),
                          .body = writer_.whole(),
                          .input = request_.input_items};
  context_.responses->put(std::move(response),
                          [weak = weak_from_this(), exchange = exchange_](Result<void> kept) {
                            exchange->post([weak, kept = std::move(kept)] {
                              if (const auto self = weak.lock(); self && !self->over_) {
                                self->deliver(kept);
                              }
                            });
                          });
}

void GenerationReply::deliver(const Result<void>& kept) {
  if (writer_.streams()) {
    flush();
    end();
    exchange_->end_stream();
    return;
  }
  HttpResponse response{.headers = {{"content-type", "application/json"}},
                        .body = std::move(writer_.bytes())};
  std::vector<std::string> notes = request_.notes;
  if (!kept) {
    notes.insert(notes.begin(), "the response was not stored: " + kept.error().what);
  }
  add_notes(notes, response.headers);
  end();
  exchange_->respond(std::move(response));
}

void GenerationReply::fail_with(const Error& error) {
  context_.metrics.failed.add();
  end();
  if (writer_.streams()) {
    writer_.fail(error);
    flush();
    exchange_->end_stream();
  } else {
    exchange_->respond(error_response(request_.protocol, request_.compat, error));
  }
}

void GenerationReply::flush() {
  exchange_->write(writer_.bytes());
  writer_.bytes().clear();  // keeps its memory for the next token
}

void GenerationReply::stop_generation() {
  if (active_ != nullptr) {
    active_.reset();  // without the lock: it may wait for a call of the source that wants it
    context_.metrics.active.add(-1);
    if (context_.under_way != nullptr) {
      --*context_.under_way;
    }
  }
}

void GenerationReply::end() {
  over_ = true;
  stop_generation();
  place_.reset();
  const MutexLock lock(mutex_);
  waiting_.clear();
}

}  // namespace galley::gateway
