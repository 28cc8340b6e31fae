#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <boost/beast/core/flat_buffer.hpp>

#include "gateway/connection_context.h"
#include "gateway/http_body.h"
#include "gateway/http_exchange.h"
#include "gateway/http_head.h"
#include "gateway/timed_io.h"

namespace galley::gateway {

// One socket and its requests, one after the other. Kept alive by its coroutine. The coroutines
// keep to what g++ 12 compiles right: no co_await inside a condition, no temporary with a
// destructor as an argument of an awaited call.
class HttpConnection {
 public:
  // `context` must outlive the connection, which is in its `open` until destruction.
  HttpConnection(ConnectionContext& context, tcp::socket socket);
  ~HttpConnection();
  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  // Serves until either side has enough.
  static asio::awaitable<void> run(std::unique_ptr<HttpConnection> self);

  void close_if_idle();
  // An answer under way is to end with an error.
  void stop_answer();
  // Ends the socket at once, and soon afterwards run().
  void cut();

 private:
  asio::awaitable<bool> serve_one();
  asio::awaitable<bool> wait_for_request();
  asio::awaitable<Refusal> read_head();
  asio::awaitable<Refusal> read_body(std::string& body, ByteBudget::Lease& lease);
  asio::awaitable<error_code> read_more();
  asio::awaitable<bool> answer();
  asio::awaitable<bool> send_whole(HttpResponse& response);
  asio::awaitable<void> refuse(Refusal refusal);
  void finish(bool sent);
  asio::awaitable<bool> send();
  asio::awaitable<bool> send_body(bool chunked);
  asio::awaitable<bool> send_part(bool chunked);
  asio::awaitable<bool> send_bytes(std::string_view bytes);
  asio::awaitable<void> watch();
  asio::awaitable<void> linger();

  [[nodiscard]] bool ends_early() const { return exchange_->aborted() || peer_gone_; }
  [[nodiscard]] std::string_view unread() const;
  void drop_empty_lines(int& lines_left);
  [[nodiscard]] std::string head_text(bool chunked) const;

  ConnectionContext& context_;
  TimedSocket socket_;
  boost::beast::flat_buffer buffer_;  // read, not yet parsed
  bool idle_ = false;                 // no request has begun
  bool peer_gone_ = false;
  HttpHead head_;            // of the request at hand
  bool persistent_ = false;  // another request may follow
  // Owners: this connection while the answer is sent, whoever computes it.
  std::shared_ptr<HttpExchange> exchange_;
};

}  // namespace galley::gateway
