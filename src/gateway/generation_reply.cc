#include "gateway/generation_reply.h"

#include <span>
#include <string_view>
#include <utility>

namespace galley::gateway {
namespace {

// All notes of a request, in one header of at most this many bytes.
constexpr std::size_t kNoteBytesMax = 1024;
constexpr std::string_view kRetryAfterS = "1";

// What the client sent without effect, so that nothing disappears without a word.
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
    headers.push_back({"x-galley-note", std::move(text)});
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
  }
  return response;
}

ReplyMetrics::ReplyMetrics(Metrics& metrics)
    : prompt_tokens(metrics.counter("galley_prompt_tokens_total", "Tokens of started prompts.")),
      cached_tokens(metrics.counter("galley_cached_tokens_total",
                                    "Prompt tokens that were not computed again.")),
      output_tokens(metrics.counter("galley_output_tokens_total", "Tokens generated.")),
      cancelled(metrics.counter("galley_cancelled_generations_total",
                                "Generations whose client left or was too slow.")) {}

void GenerationReply::begin(std::shared_ptr<Exchange> exchange,
                            Prepared prepared,
                            ReplyContext context) {
  if (exchange->gone()) {
    return;
  }
  const auto reply =
      std::make_shared<GenerationReply>(exchange, std::move(prepared.request), context);
  auto active = context.source.start(std::move(prepared.generation), *reply);
  if (!active) {
    exchange->respond(
        error_response(reply->request_.protocol, reply->request_.compat, active.error()));
    return;
  }
  reply->active_ = std::move(*active);
  exchange->listen(reply);
  if (reply->writer_.streams()) {
    exchange->start_stream(stream_head(reply->request_));
  }
}

GenerationReply::GenerationReply(std::shared_ptr<Exchange> exchange,
                                 recipe::Request request,
                                 ReplyContext context)
    : exchange_(std::move(exchange)),
      request_(std::move(request)),
      context_(context),
      writer_(request_,
              context_.codec.tokenizer(),
              {.id = new_reply_id(request_.protocol, context_.ids),
               .created_s = context_.clock.unix_seconds(),
               .call_ids = &context_.ids,
               .clock = &context_.clock}) {}

void GenerationReply::on_start(const recipe::Started& started) {
  add(started);
}

void GenerationReply::on_tokens(std::span<const TokenId> ids,
                                std::span<const recipe::TokenLogprob> logprobs) {
  add(Tokens{{ids.begin(), ids.end()}, {logprobs.begin(), logprobs.end()}});
}

void GenerationReply::on_finish(recipe::SourceFinish reason) {
  add(reason);
}

void GenerationReply::on_error(Error error) {
  add(std::move(error));
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

void GenerationReply::on_quiet() {
  if (!over_ && writer_.streams()) {
    writer_.keep_alive();
    flush();
  }
}

std::size_t GenerationReply::bytes(const Step& step) {
  const auto* tokens = std::get_if<Tokens>(&step);
  if (tokens == nullptr) {
    return 0;
  }
  std::size_t sum = tokens->ids.size() * sizeof(TokenId);
  for (const recipe::TokenLogprob& logprob : tokens->logprobs) {
    sum += sizeof logprob + logprob.token.size();
    for (const recipe::TopLogprob& top : logprob.top) {
      sum += sizeof top + top.token.size();
    }
  }
  return sum;
}

// On any thread. One task carries all that came until it runs.
void GenerationReply::add(Step step) {
  const MutexLock lock(mutex_);
  inbox_.push_back(std::move(step));
  if (!std::exchange(take_posted_, true)) {
    exchange_->post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) {
        self->take_inbox();
      }
    });
  }
}

void GenerationReply::take_inbox() {
  std::vector<Step> steps;
  {
    const MutexLock lock(mutex_);
    steps.swap(inbox_);
    take_posted_ = false;
  }
  if (over_) {
    return;
  }
  for (Step& step : steps) {
    waiting_bytes_ += bytes(step);
    waiting_.push_back(std::move(step));
  }
  pump();
  if (!over_ && waiting_bytes_ > context_.limits.waiting_bytes_max) {
    context_.metrics.cancelled.add();
    end();
    exchange_->abort();
  }
}

void GenerationReply::pump() {
  while (!over_ && !waiting_.empty() &&
         (!writer_.streams() || exchange_->unsent_bytes() < context_.limits.unsent_bytes_max)) {
    Step step = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= bytes(step);
    apply(step);
  }
}

void GenerationReply::apply(Step& step) {
  if (const auto* started = std::get_if<recipe::Started>(&step)) {
    context_.metrics.prompt_tokens.add(static_cast<double>(started->prompt_tokens));
    context_.metrics.cached_tokens.add(static_cast<double>(started->cached_tokens));
    writer_.start(*started);
  } else if (const auto* tokens = std::get_if<Tokens>(&step)) {
    context_.metrics.output_tokens.add(static_cast<double>(tokens->ids.size()));
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

void GenerationReply::complete(std::optional<recipe::SourceFinish> reason) {
  writer_.finish(reason);
  if (writer_.streams()) {
    flush();
    end();
    exchange_->end_stream();
    return;
  }
  HttpResponse response{.headers = {{"content-type", "application/json"}},
                        .body = std::move(writer_.bytes())};
  add_notes(request_.notes, response.headers);
  end();
  exchange_->respond(std::move(response));
}

void GenerationReply::fail_with(const Error& error) {
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

void GenerationReply::end() {
  over_ = true;
  waiting_.clear();
  waiting_bytes_ = 0;
  active_.reset();
}

}  // namespace galley::gateway
