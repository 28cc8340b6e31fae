#include "gateway/http_exchange.h"

#include <utility>

#include <boost/asio/post.hpp>

#include "base/check.h"

namespace galley::gateway {

HttpExchange::HttpExchange(ConnectionContext& context, HttpRequest request)
    : context_(context),
      request_(std::move(request)),
      begun_(context.clock.now()),
      changed_(context.io) {}

void HttpExchange::respond(HttpResponse response) {
  GALLEY_ASSERT(!started_);
  started_ = true;
  ended_ = true;
  head_ = std::move(response);
  out_ = std::move(head_.body);
  changed_.wake();
}

void HttpExchange::start_stream(HttpResponse head) {
  GALLEY_ASSERT(!started_);
  started_ = true;
  streaming_ = true;
  head_ = std::move(head);
  changed_.wake();
}

void HttpExchange::write(std::string_view bytes) {
  if (!gone_ && !bytes.empty()) {
    out_.append(bytes);
    changed_.wake();
  }
}

void HttpExchange::end_stream() {
  ended_ = true;
  changed_.wake();
}

void HttpExchange::abort() {
  aborted_ = true;
  changed_.wake();
}

void HttpExchange::listen(std::shared_ptr<ExchangeListener> listener) {
  if (gone_) {
    return;
  }
  listener_ = std::move(listener);
  if (context_.stopping) {
    stop();
  }
}

void HttpExchange::post(std::move_only_function<void()> task) {
  asio::post(context_.io, std::move(task));
}

bool HttpExchange::offload(std::move_only_function<void()> task) {
  return context_.codec_pool.try_post(std::move(task));
}

std::string HttpExchange::take() {
  sending_bytes_ = out_.size();
  return std::exchange(out_, {});
}

void HttpExchange::sent() {
  sending_bytes_ = 0;
  if (const auto listener = listener_) {
    listener->on_room();
  }
}

void HttpExchange::stop() {
  if (const auto listener = listener_) {
    listener->on_stop();
  }
}

void HttpExchange::keep_alive() {
  if (const auto listener = listener_) {
    listener->on_keep_alive();
  }
}

void HttpExchange::note_token() {
  if (!first_token_) {
    first_token_ = context_.clock.now() - begun_;
  }
}

void HttpExchange::close(bool complete) {
  gone_ = true;
  out_.clear();
  if (const auto listener = std::exchange(listener_, nullptr); listener && !complete) {
    listener->on_gone();
  }
  context_.handler.finished({.request = request_,
                             .status = started_ ? head_.status : 0,
                             .complete = complete,
                             .took = context_.clock.now() - begun_,
                             .first_token = first_token_});
  // Somebody may hold on to the exchange. An assignment would keep the memory of the string.
  const HttpBody over = std::move(request_.body);
}

}  // namespace galley::gateway
