#include "gateway/http_connection.h"

#include <fmt/core.h>
#include <optional>
#include <utility>
#include <variant>

#include <boost/asio/experimental/awaitable_operators.hpp>

#include "gateway/http_text.h"

namespace galley::gateway {
namespace {

using namespace asio::experimental::awaitable_operators;

constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::size_t kReadBytes = std::size_t{16} << 10U;
constexpr std::size_t kWriteBytes = std::size_t{64} << 10U;
// Requests that arrive while one is being answered wait here; beyond it the socket is not read.
constexpr std::size_t kPipelineBytesMax = std::size_t{64} << 10U;
// What a lingering close reads and throws away before it gives up.
constexpr std::size_t kLingerBytesMax = std::size_t{1} << 20U;
// Empty lines before a request that are read over (RFC 9112 2.2 asks for one at least).
constexpr int kEmptyLinesMax = 4;

}  // namespace

HttpConnection::HttpConnection(ConnectionContext& context, tcp::socket socket)
    : context_(context),
      socket_(std::move(socket)),
      buffer_(context.options.header_bytes_max + kPipelineBytesMax + kReadBytes) {
  context_.open.insert(this);
  context_.serving.insert(this);
  context_.on_sets_changed();
}

HttpConnection::~HttpConnection() {
  context_.open.erase(this);
  context_.serving.erase(this);
  context_.on_sets_changed();
}

asio::awaitable<void> HttpConnection::run(std::unique_ptr<HttpConnection> self) {
  for (bool more = true; more;) {
    more = co_await self->serve_one();
  }
  self->context_.serving.erase(self.get());
  self->context_.on_sets_changed();
  co_await self->linger();
}

void HttpConnection::close_if_idle() {
  if (idle_) {
    socket_.cancel();
  }
}

void HttpConnection::stop_answer() {
  if (exchange_) {
    exchange_->stop();
  }
}

void HttpConnection::cut() {
  socket_.close();
  if (exchange_) {
    exchange_->abort();
  }
}

// True when the connection can take another request.
asio::awaitable<bool> HttpConnection::serve_one() {
  const bool begun = co_await wait_for_request();
  if (!begun) {
    co_return false;
  }
  const Refusal bad_head = co_await read_head();
  if (bad_head.status != 0 || peer_gone_) {
    co_await refuse(bad_head);
    co_return false;
  }
  std::optional<HttpResponse> early = context_.handler.refuse_early(head_.request);
  if (early) {
    persistent_ = persistent_ && !head_.has_body();
    co_return co_await send_whole(*early);
  }
  std::string body;
  auto lease = std::make_shared<ByteBudget::Lease>(context_.bodies);
  const Refusal bad_body = co_await read_body(body, *lease);
  if (bad_body.status != 0 || peer_gone_) {
    co_await refuse(bad_body);
    co_return false;
  }
  head_.request.body = {.text = std::move(body), .lease = std::move(lease)};
  co_return co_await answer();
}

std::string_view HttpConnection::unread() const {
  return {static_cast<const char*>(buffer_.data().data()), buffer_.size()};
}

void HttpConnection::drop_empty_lines(int& lines_left) {
  for (; lines_left > 0 && unread().starts_with("\r\n"); --lines_left) {
    buffer_.consume(2);
  }
}

// True when a request has begun; false when the connection has nothing more to say.
asio::awaitable<bool> HttpConnection::wait_for_request() {
  int lines_left = kEmptyLinesMax;
  drop_empty_lines(lines_left);
  socket_.set_deadline(context_.options.idle_timeout);
  while (unread().empty() || unread() == "\r") {
    if (!context_.accepting) {
      co_return false;
    }
    idle_ = true;
    const error_code error = co_await read_more();
    idle_ = false;
    if (error) {
      co_return false;
    }
    drop_empty_lines(lines_left);
  }
  co_return true;
}

// Status 0 when the request can be served, or when the peer left (peer_gone_).
asio::awaitable<Refusal> HttpConnection::read_head() {
  socket_.set_deadline(context_.options.header_timeout);
  HeadParser parser(context_.options);
  Refusal late;
  while (true) {
    buffer_.consume(parser.feed(unread()));
    if (parser.done() || parser.refusal().status != 0) {
      break;
    }
    const error_code error = co_await read_more();
    if (error == asio::error::timed_out) {
      late = {408, "The request header took too long."};
      break;
    }
    if (error) {
      peer_gone_ = true;
      break;
    }
  }
  socket_.clear_deadline();
  head_ = parser.head();
  if (head_.request.id.empty() && !peer_gone_) {
    head_.request.id = "req_" + context_.ids.next_id();
  }
  persistent_ = head_.persistent;
  co_return late.status != 0 ? late : parser.refusal();
}

// Status 0 when the body is complete, or when the peer left (peer_gone_).
// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): both outlive the call
asio::awaitable<Refusal> HttpConnection::read_body(std::string& body, ByteBudget::Lease& lease) {
  if (head_.has_body() && head_.expects_continue && head_.http_1_1 && buffer_.size() == 0) {
    co_await send_bytes(kContinue);
  }
  socket_.set_deadline(context_.options.body_timeout);
  BodyParser parser(head_, context_.options.largest_body_bytes());
  Refusal refusal;
  while (refusal.status == 0) {
    buffer_.consume(parser.feed(unread(), body));
    refusal = parser.refusal();
    if (refusal.status == 0 && !lease.grow_to(body.size())) {
      refusal = {503, "The server holds too many request bodies at once. Retry later."};
    }
    if (refusal.status != 0 || parser.done()) {
      break;
    }
    const error_code error = co_await read_more();
    if (error == asio::error::timed_out) {
      refusal = {408, "The request body took too long."};
    } else if (error) {
      peer_gone_ = true;
      break;
    }
  }
  socket_.clear_deadline();
  co_return refusal;
}

// Reads once, behind what is unread.
asio::awaitable<error_code> HttpConnection::read_more() {
  const auto [error, bytes] = co_await socket_.read_some(buffer_.prepare(kReadBytes));
  buffer_.commit(bytes);
  co_return error;
}

// Hands the request to the application and sends what it answers. A request that is still being
// worked on when the peer leaves is gone.
asio::awaitable<bool> HttpConnection::answer() {
  exchange_ = std::make_shared<HttpExchange>(context_, std::move(head_.request));
  context_.handler.handle(exchange_);
  bool sent = false;
  if (exchange_->ended()) {
    sent = co_await send();
  } else {
    const auto result = co_await (send() || watch());
    sent = result.index() == 0 && std::get<0>(result) && !peer_gone_;
  }
  finish(sent);
  persistent_ = persistent_ && sent && !context_.close_after_answers;
  co_return persistent_;
}

// Answers the request without asking the application.
// NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): outlives the call
asio::awaitable<bool> HttpConnection::send_whole(HttpResponse& response) {
  exchange_ = std::make_shared<HttpExchange>(context_, std::move(head_.request));
  exchange_->respond(std::move(response));
  const bool sent = co_await send();
  finish(sent);
  persistent_ = persistent_ && sent;
  co_return persistent_;
}

asio::awaitable<void> HttpConnection::refuse(Refusal refusal) {
  if (refusal.status == 0) {
    co_return;
  }
  persistent_ = false;
  std::string message(refusal.message);
  if (refusal.status == 413) {
    message += fmt::format(" It may have {} bytes.", context_.options.largest_body_bytes());
  }
  HttpResponse response =
      context_.handler.connection_error(refusal.status, message, head_.request.path);
  co_await send_whole(response);
}

void HttpConnection::finish(bool sent) {
  const std::shared_ptr<HttpExchange> exchange = std::exchange(exchange_, nullptr);
  exchange->close(sent);
  if (!sent) {
    cut();
  }
}

// Sends the answer of exchange_ as it comes. True when all of it was sent.
asio::awaitable<bool> HttpConnection::send() {
  while (!exchange_->started() && !ends_early()) {
    co_await exchange_->changed().wait();
  }
  if (ends_early()) {
    co_return false;
  }
  const bool chunked = exchange_->streaming() && head_.http_1_1;
  persistent_ =
      persistent_ && (chunked || !exchange_->streaming()) && !context_.close_after_answers;
  const std::string head = head_text(chunked);
  const bool sent = co_await send_bytes(head);
  if (!sent) {
    co_return false;
  }
  co_return co_await send_body(chunked);
}

asio::awaitable<bool> HttpConnection::send_body(bool chunked) {
  bool sent = true;
  while (sent && !ends_early()) {
    if (exchange_->waiting_bytes() > 0) {
      sent = co_await send_part(chunked);
      exchange_->sent();
    } else if (exchange_->ended()) {
      if (chunked && !head_.no_reply_body) {
        sent = co_await send_bytes(kLastChunk);
      }
      co_return sent;
    } else {
      const bool woken =
          co_await exchange_->changed().wait_for(context_.options.keep_alive_interval);
      if (!woken && !ends_early()) {
        exchange_->keep_alive();
      }
    }
  }
  co_return false;
}

asio::awaitable<bool> HttpConnection::send_part(bool chunked) {
  std::string part = exchange_->take();
  if (head_.no_reply_body) {
    co_return true;
  }
  if (chunked) {
    part.insert(0, fmt::format("{:x}\r\n", part.size())).append("\r\n");
  }
  bool sent = true;
  for (std::size_t at = 0; at < part.size() && sent; at += kWriteBytes) {
    const std::string_view bytes = std::string_view(part).substr(at, kWriteBytes);
    sent = co_await send_bytes(bytes);
  }
  co_return sent;
}

// `bytes` must stay until the end of the call.
asio::awaitable<bool> HttpConnection::send_bytes(std::string_view bytes) {
  socket_.set_deadline(context_.options.write_timeout);
  const error_code error = co_await socket_.write(bytes);
  socket_.clear_deadline();
  co_return !error;
}

std::string HttpConnection::head_text(bool chunked) const {
  const HttpResponse& response = exchange_->head();
  std::string text =
      fmt::format("HTTP/1.1 {} {}\r\ndate: {}\r\n", response.status, reason_phrase(response.status),
                  http_date(context_.clock.unix_seconds()));
  for (const HttpHeader& header : response.headers) {
    append_header(header.name, header.value, text);
  }
  append_header("x-request-id", exchange_->request().id, text);
  if (chunked) {
    text += "transfer-encoding: chunked\r\n";
  } else if (!exchange_->streaming()) {
    text += fmt::format("content-length: {}\r\n", exchange_->waiting_bytes());
  }
  if (!persistent_) {
    text += "connection: close\r\n";
  } else if (!head_.http_1_1) {
    text += "connection: keep-alive\r\n";
  }
  return text += "\r\n";
}

// Runs beside send(): ends when the peer has closed. Keeps what a pipelining client sends. The end
// of what the peer sends counts as its leaving: TCP says the same of a closed socket and of one
// that still reads, and an answer nobody waits for can cost minutes.
asio::awaitable<void> HttpConnection::watch() {
  error_code error;
  while (!error && buffer_.size() < kPipelineBytesMax) {
    error = co_await read_more();
  }
  if (!error) {
    error = co_await socket_.wait_broken();
  }
  peer_gone_ = error != asio::error::operation_aborted;
}

// Says that nothing more comes and reads on for a moment: closing with unread bytes would reset
// the connection, and the peer might never see our last answer.
asio::awaitable<void> HttpConnection::linger() {
  if (!socket_.shut_down_sending()) {
    co_return;
  }
  socket_.set_deadline(context_.options.linger_timeout);
  error_code error;
  for (std::size_t dropped = 0; !error && dropped < kLingerBytesMax;) {
    dropped += buffer_.size();
    buffer_.clear();
    error = co_await read_more();
  }
}

}  // namespace galley::gateway
