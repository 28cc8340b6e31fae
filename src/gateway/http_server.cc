#include "gateway/http_server.h"

#include <fmt/core.h>
#include <future>
#include <optional>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "base/check.h"
#include "base/task_pool.h"
#include "gateway/connection_context.h"
#include "gateway/http_connection.h"
#include "gateway/http_text.h"
#include "gateway/timed_io.h"

namespace galley::gateway {
namespace {

// How long accepting pauses when the process has no file descriptor left.
constexpr std::chrono::milliseconds kAcceptRetry{100};

}  // namespace

const std::string* HttpRequest::header(std::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (header.name == name) {
      return &header.value;
    }
  }
  return nullptr;
}

class HttpServer::Impl {
 public:
  Impl(HttpOptions options, HttpHandler& handler, const Clock& clock, recipe::IdSource& ids);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> listen();
  void close_after_answers() { context_.close_after_answers = true; }
  bool drain(Duration bound);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::size_t connection_count() const { return connection_count_; }

 private:
  asio::awaitable<void> accept();
  void refuse_connection(tcp::socket socket);
  void stop_accepting();
  void stop_answers();
  void sets_changed();
  void tell_drained();

  std::uint16_t port_ = 0;
  std::atomic<std::size_t> connection_count_{0};
  std::promise<void> drained_;
  bool drained_told_ = false;  // io_thread_'s

  asio::io_context io_;
  asio::executor_work_guard<asio::io_context::executor_type> busy_{io_.get_executor()};
  // Behind io_, so destroyed before it: a task may own an exchange, whose timer is io_'s.
  TaskPool codec_pool_;
  ConnectionContext context_;  // its non-atomic members belong to io_thread_
  tcp::acceptor acceptor_;
  Wakeup accept_retry_;
  // One thread: connections need no locks, and what they do between two system calls is small.
  TaskPool io_thread_{1, 1};
};

HttpServer::Impl::Impl(HttpOptions options,
                       HttpHandler& handler,
                       const Clock& clock,
                       recipe::IdSource& ids)
    : codec_pool_(options.codec_threads, options.codec_tasks_waiting),
      context_{.options = std::move(options),
               .handler = handler,
               .clock = clock,
               .ids = ids,
               .io = io_,
               .codec_pool = codec_pool_},
      acceptor_(io_),
      accept_retry_(io_) {
  context_.on_sets_changed = [this] { sets_changed(); };
  const bool posted = io_thread_.try_post([this] { io_.run(); });
  GALLEY_ASSERT(posted);
}

Result<void> HttpServer::Impl::listen() {
  const HttpOptions& options = context_.options;
  error_code error;
  const asio::ip::address address = asio::ip::make_address(options.address, error);
  if (error) {
    return fail(Code::kInvalidArgument,
                fmt::format("'{}' is not an IP address to listen on", options.address));
  }
  const tcp::endpoint endpoint(address, options.port);
  acceptor_.open(endpoint.protocol(), error);
  if (!error) {
    acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  }
  if (!error) {
    acceptor_.bind(endpoint, error);
  }
  if (!error) {
    acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  }
  if (error) {
    return fail(Code::kUnavailable, fmt::format("cannot listen on {}:{}: {}", options.address,
                                                options.port, error.message()));
  }
  port_ = acceptor_.local_endpoint().port();
  asio::co_spawn(io_, accept(), asio::detached);
  return {};
}

asio::awaitable<void> HttpServer::Impl::accept() {
  while (context_.accepting) {
    auto [error, socket] = co_await acceptor_.async_accept(kNoThrow);
    if (!context_.accepting) {
      co_return;
    }
    if (error) {
      co_await accept_retry_.wait_for(kAcceptRetry);
      continue;
    }
    if (context_.open.size() >= context_.options.connections_max) {
      refuse_connection(std::move(socket));
      continue;
    }
    auto connection = std::make_unique<HttpConnection>(context_, std::move(socket));
    asio::co_spawn(io_, HttpConnection::run(std::move(connection)), asio::detached);
  }
}

// Best effort, without waiting: being full must not cost a place.
void HttpServer::Impl::refuse_connection(tcp::socket socket) {
  const HttpResponse response = context_.handler.connection_error(
      503, "The server has as many connections as it may have. Retry later.", {});
  std::string text =
      fmt::format("HTTP/1.1 503 Service Unavailable\r\ncontent-length: {}\r\nconnection: close\r\n",
                  response.body.size());
  for (const HttpHeader& header : response.headers) {
    append_header(header.name, header.value, text);
  }
  text.append("\r\n").append(response.body);
  error_code ignored;
  socket.non_blocking(true, ignored);
  socket.write_some(asio::buffer(text), ignored);
  socket.shutdown(tcp::socket::shutdown_send, ignored);
}

void HttpServer::Impl::sets_changed() {
  if (connection_count_.exchange(context_.open.size()) != context_.open.size()) {
    context_.handler.connection_count_changed(context_.open.size());
  }
  tell_drained();
}

// Connections that only linger hold up no drain: their answers are out.
void HttpServer::Impl::tell_drained() {
  if (!context_.accepting && context_.serving.empty() && !std::exchange(drained_told_, true)) {
    drained_.set_value();
  }
}

void HttpServer::Impl::stop_accepting() {
  if (!std::exchange(context_.accepting, false)) {
    return;
  }
  error_code ignored;
  acceptor_.close(ignored);
  accept_retry_.wake();
  tell_drained();
  for (HttpConnection* connection : context_.open) {
    connection->close_if_idle();
  }
}

void HttpServer::Impl::stop_answers() {
  context_.stopping = true;
  for (HttpConnection* connection : context_.open) {
    connection->stop_answer();
  }
}

bool HttpServer::Impl::drain(Duration bound) {
  close_after_answers();
  std::future<void> drained = drained_.get_future();
  asio::post(io_, [this] { stop_accepting(); });
  if (drained.wait_for(bound) == std::future_status::ready) {
    return true;
  }
  asio::post(io_, [this] { stop_answers(); });
  drained.wait_for(context_.options.stop_timeout);
  return false;
}

HttpServer::Impl::~Impl() {
  std::promise<void> cut;
  asio::post(io_, [this, &cut] {
    codec_pool_.close();  // whoever is told that a client is gone starts no more work
    close_after_answers();
    stop_accepting();
    for (HttpConnection* connection : context_.open) {
      connection->cut();
    }
    cut.set_value();
  });
  cut.get_future().wait();
  codec_pool_.join();
  busy_.reset();
  io_thread_.join();  // every coroutine ends: its socket is closed, its waits are cancelled
}

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options,
                                                      HttpHandler& handler,
                                                      const Clock& clock,
                                                      recipe::IdSource& ids) {
  auto impl = std::make_unique<Impl>(std::move(options), handler, clock, ids);
  GALLEY_CHECK_OK(impl->listen());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

std::uint16_t HttpServer::port() const {
  return impl_->port();
}

std::size_t HttpServer::connection_count() const {
  return impl_->connection_count();
}

void HttpServer::close_after_answers() {
  impl_->close_after_answers();
}

bool HttpServer::drain(Duration bound) {
  return impl_->drain(bound);
}

}  // namespace galley::gateway
