#include "gateway/http_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <fmt/core.h>
#include <future>
#include <set>
#include <utility>

#include <boost/asio.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>

#include "base/check.h"
#include "gateway/http_text.h"

namespace galley::gateway {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using tcp = asio::ip::tcp;
using boost::system::error_code;
using namespace asio::experimental::awaitable_operators;

constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kLastChunk = "0\r\n\r\n";
constexpr std::size_t kReadBytes = std::size_t{16} << 10U;
constexpr std::size_t kWriteBytes = std::size_t{64} << 10U;
// Requests that arrive while one is being answered wait here; beyond it the socket is not read.
constexpr std::size_t kPipelineBytesMax = std::size_t{64} << 10U;
// What a lingering close reads and throws away before it gives up.
constexpr std::size_t kLingerBytesMax = std::size_t{1} << 20U;
// How long accepting pauses when the process has no file descriptor left.
constexpr std::chrono::milliseconds kAcceptRetry{100};

std::string_view view(beast::string_view text) {
  return {text.data(), text.size()};
}

using Parser = http::request_parser<http::string_body>;

// A number of bytes that all request bodies share. Taken on the connections' thread only, returned
// when the lease dies, on any.
class Budget {
 public:
  explicit Budget(std::size_t bytes_max) : left_(bytes_max) {}

  class Lease {
   public:
    explicit Lease(Budget& budget) : budget_(budget) {}
    ~Lease() { budget_.left_ += held_; }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    // False, and nothing changes, when the budget does not allow it.
    bool grow_to(std::size_t bytes) {
      if (bytes > held_) {
        if (bytes - held_ > budget_.left_) {
          return false;
        }
        budget_.left_ -= bytes - held_;
        held_ = bytes;
      }
      return true;
    }

   private:
    Budget& budget_;
    std::size_t held_ = 0;
  };

 private:
  std::atomic<std::size_t> left_;
};

// A head that must not be served, with the status that says so.
struct Refusal {
  int status{};
  std::string_view message;
};

// What the parser found wrong, as a status. 0: the peer left, nobody is there to be told.
Refusal refusal_of(const error_code& error, bool start_line_seen) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return start_line_seen ? Refusal{431, "The request header is too large."}
                           : Refusal{414, "The request target is too long."};
  }
  if (error == http::error::body_limit) {
    return {413, "The request body is too large."};
  }
  if (error == http::error::bad_version) {
    return {505, "Only HTTP/1.0 and HTTP/1.1 are spoken here."};
  }
  if (error == http::error::bad_transfer_encoding || error == http::error::bad_content_length ||
      error == http::error::multiple_content_length) {
    return {400, "The length of the request body is ambiguous."};
  }
  if (error.category() == http::make_error_code(http::error::bad_target).category() &&
      error != http::error::end_of_stream && error != http::error::partial_message) {
    return {400, "The request is not well-formed HTTP."};
  }
  return {};
}

bool is_digits(beast::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

// Rules of RFC 9112 that Beast leaves to its caller. Whatever could be read differently by a proxy
// in front of us (two lengths, unknown codings) is refused and the connection closed.
Refusal check_head(const Parser& parser, const HttpOptions& options) {
  const auto& head = parser.get();
  if (head.target().size() > options.target_bytes_max) {
    return {414, "The request target is too long."};
  }
  std::size_t header_count = 0;
  std::size_t host_count = 0;
  std::size_t coding_count = 0;
  std::size_t length_count = 0;
  for (const auto& field : head) {
    ++header_count;
    host_count += field.name() == http::field::host ? 1 : 0;
    coding_count += field.name() == http::field::transfer_encoding ? 1 : 0;
    length_count += field.name() == http::field::content_length ? 1 : 0;
  }
  if (header_count > options.header_count_max) {
    return {431, "The request has too many header fields."};
  }
  if (host_count > 1 || (host_count == 0 && head.version() >= 11)) {
    return {400, "The request needs exactly one Host header."};
  }
  if (coding_count > 1 || length_count > 1 || (coding_count > 0 && length_count > 0) ||
      (coding_count > 0 && head.version() < 11) || !is_digits(head[http::field::content_length])) {
    return {400, "The length of the request body is ambiguous."};
  }
  if (coding_count > 0 &&
      !same_ignoring_case(view(head[http::field::transfer_encoding]), "chunked")) {
    return {501, "The only transfer coding understood is chunked."};
  }
  if (coding_count == 0 && length_count == 0 &&
      (head.method() == http::verb::post || head.method() == http::verb::put ||
       head.method() == http::verb::patch)) {
    return {411, "A request with a body needs a Content-Length."};
  }
  if (const auto expect = head[http::field::expect];
      !expect.empty() && !same_ignoring_case(view(expect), "100-continue")) {
    return {417, "The only expectation understood is 100-continue."};
  }
  return {};
}

using Socket = asio::basic_stream_socket<tcp, asio::any_io_executor>;
using Timer = asio::steady_timer;

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
  Impl(HttpOptions options, HttpHandler& handler, const Clock& clock, recipe::IdSource& ids)
      : options_(std::move(options)),
        handler_(handler),
        clock_(clock),
        ids_(ids),
        bodies_(options_.bodies_bytes_max),
        workers_(options_.worker_count),
        acceptor_(io_) {}
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Result<void> listen();
  void close_after_answers() { draining_ = true; }
  bool drain(Duration bound);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] std::size_t connection_count() const { return connection_count_; }

 private:
  class Live;
  class Connection;

  asio::awaitable<void> accept();
  void refuse_connection(Socket socket);
  void stop_accepting();
  bool offload(std::move_only_function<void()> task);
  HttpRequest to_request(const Parser& parser);
  void register_connection(Connection* connection);
  void forget_connection(Connection* connection);

  const HttpOptions options_;
  HttpHandler& handler_;
  const Clock& clock_;
  recipe::IdSource& ids_;
  std::uint16_t port_ = 0;
  std::atomic<std::size_t> connection_count_{0};

  std::atomic<bool> draining_ = false;  // every answer closes its connection

  // The state of every connection, touched by the one thread of io_ only.
  Budget bodies_;
  std::set<Connection*> connections_;
  bool accepting_ = true;
  bool ending_ = false;  // nothing is handed to workers_ any more
  std::promise<void> drained_;

  std::atomic<std::size_t> tasks_waiting_{0};
  // One thread: connections need no locks, and what they do between two system calls is small.
  asio::thread_pool io_{1};
  // After io_, so destroyed before it: a task may own an exchange, whose timer is io_'s.
  asio::thread_pool workers_;
  tcp::acceptor acceptor_;
};

// An exchange on a connection. Shared by the connection, and by whoever still computes an answer.
class HttpServer::Impl::Live final : public Exchange {
 public:
  Live(Impl& server, HttpRequest request)
      : server_(server),
        request_(std::move(request)),
        begun_(server.clock_.now()),
        wake_(server.io_, Timer::time_point::max()) {}

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse response) override {
    GALLEY_ASSERT(!started_);
    started_ = true;
    ended_ = true;
    head_ = std::move(response);
    out_ = std::move(head_.body);
    wake_.cancel();
  }
  void start_stream(HttpResponse head) override {
    GALLEY_ASSERT(!started_);
    started_ = true;
    streaming_ = true;
    head_ = std::move(head);
    wake_.cancel();
  }
  void write(std::string_view bytes) override {
    if (!gone_ && !bytes.empty()) {
      out_.append(bytes);
      wake_.cancel();
    }
  }
  [[nodiscard]] std::size_t unsent_bytes() const override { return out_.size() + sending_bytes_; }
  void end_stream() override {
    ended_ = true;
    wake_.cancel();
  }
  void abort() override {
    aborted_ = true;
    wake_.cancel();
  }
  [[nodiscard]] bool gone() const override { return gone_; }
  void listen(std::shared_ptr<ExchangeListener> listener) override {
    if (!gone_) {
      listener_ = std::move(listener);
    }
  }
  void post(std::move_only_function<void()> task) override {
    asio::post(server_.io_, std::move(task));
  }
  bool offload(std::move_only_function<void()> task) override {
    return server_.offload(std::move(task));
  }

  // The exchange is over. Breaks the ring between an exchange and the listener that owns it.
  void close(bool complete) {
    gone_ = true;
    out_.clear();
    if (const auto listener = std::exchange(listener_, nullptr); listener && !complete) {
      listener->on_gone();
    }
    server_.handler_.finished({.request = request_,
                               .status = started_ ? head_.status : 0,
                               .complete = complete,
                               .took = server_.clock_.now() - begun_});
    // Somebody may hold on to the exchange. An assignment would keep the memory of the string.
    const HttpBody over = std::move(request_.body);
  }
  void room() {
    if (const auto listener = listener_) {
      listener->on_room();
    }
  }
  void quiet() {
    if (const auto listener = listener_) {
      listener->on_quiet();
    }
  }

 private:
  friend class Connection;
  Impl& server_;
  HttpRequest request_;
  const TimeNs begun_;
  HttpResponse head_;
  std::string out_;  // body bytes that wait for the connection
  std::size_t sending_bytes_ = 0;
  bool started_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  bool aborted_ = false;
  std::atomic<bool> gone_ = false;
  std::shared_ptr<ExchangeListener> listener_;  // owners: this exchange, tasks it posted
  Timer wake_;  // cancelled to wake the connection's sending coroutine
};

// One socket and its requests, one after the other. Kept alive by its coroutine and by the handler
// of its deadline. The coroutines keep to what g++ 12 compiles right: no co_await inside a
// condition, no temporary with a destructor as an argument of an awaited call.
class HttpServer::Impl::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Impl& server, Socket socket)
      : server_(server),
        socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        buffer_(server.options_.header_bytes_max + kPipelineBytesMax + kReadBytes) {
    server_.register_connection(this);
  }
  ~Connection() { server_.forget_connection(this); }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): the frame owns `self`
  static asio::awaitable<void> run(std::shared_ptr<Connection> self) {
    for (bool more = true; more;) {
      more = co_await self->serve_one();
    }
    co_await self->linger();
  }

  void close_if_idle() {
    if (idle_) {
      error_code ignored;
      socket_.cancel(ignored);
    }
  }
  void cut() {
    error_code ignored;
    socket_.close(ignored);
    if (live_) {
      live_->aborted_ = true;
      live_->wake_.cancel();
    }
  }

 private:
  // Cancels whatever the socket waits for when `bound` is over, once.
  void arm(Duration bound) {
    expired_ = false;
    deadline_.expires_after(bound);
    deadline_.async_wait([self = shared_from_this(), epoch = ++epoch_](const error_code& error) {
      if (!error && epoch == self->epoch_) {
        self->expired_ = true;
        error_code ignored;
        self->socket_.cancel(ignored);
      }
    });
  }
  void disarm() {
    ++epoch_;
    deadline_.cancel();
  }

  // True when the connection can take another request.
  asio::awaitable<bool> serve_one() {
    const bool begun = co_await wait_for_request();
    if (!begun) {
      co_return false;
    }
    request_ = {};
    Parser parser;
    const Refusal bad_head = co_await read_head(parser);
    if (bad_head.status != 0 || peer_gone_) {
      co_await refuse(bad_head);
      co_return false;
    }
    std::optional<HttpResponse> early = server_.handler_.refuse_early(request_);
    if (early) {
      keep_alive_ = keep_alive_ && parser.is_done();
      co_return co_await send_whole(*early);
    }
    auto lease = std::make_shared<Budget::Lease>(server_.bodies_);
    const Refusal bad_body = co_await read_body(parser, *lease);
    if (bad_body.status != 0 || peer_gone_) {
      co_await refuse(bad_body);
      co_return false;
    }
    request_.body = {.text = std::move(parser.get().body()), .lease = std::move(lease)};
    co_return co_await answer();
  }

  // Fills request_. Status 0 when it can be served, or when the peer left (peer_gone_).
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): outlives the call
  asio::awaitable<Refusal> read_head(Parser& parser) {
    parser.header_limit(static_cast<std::uint32_t>(server_.options_.header_bytes_max));
    parser.body_limit(server_.options_.body_bytes_max);
    arm(server_.options_.header_timeout);
    const auto [error, read] = co_await http::async_read_header(socket_, buffer_, parser, kNoThrow);
    disarm();
    Refusal bad;
    if (expired_) {
      bad = {408, "The request header took too long."};
    } else if (error) {
      bad = refusal_of(error, !parser.get().target().empty());
      peer_gone_ = bad.status == 0;
    } else {
      request_ = server_.to_request(parser);
      bad = check_head(parser, server_.options_);
    }
    head_only_ = parser.get().method() == http::verb::head;
    if (head_only_) {
      request_.method = "GET";
    }
    version_ = parser.get().version();
    keep_alive_ = parser.get().keep_alive();
    co_return bad;
  }

  asio::awaitable<bool> wait_for_request() {
    if (buffer_.size() == 0) {
      if (!server_.accepting_) {
        co_return false;
      }
      idle_ = true;
      arm(server_.options_.idle_timeout);
      const auto [error, read] =
          co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kNoThrow);
      disarm();
      idle_ = false;
      buffer_.commit(read);
      co_return !error;
    }
    co_return true;
  }

  // Status 0 when the body is complete, or when the peer left (peer_gone_).
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): both outlive the call
  asio::awaitable<Refusal> read_body(Parser& parser, Budget::Lease& lease) {
    if (!parser.is_done() && parser.get().count(http::field::expect) > 0 && version_ >= 11 &&
        buffer_.size() == 0) {
      co_await send_bytes(kContinue);
    }
    arm(server_.options_.body_timeout);
    Refusal bad;
    while (!parser.is_done() && bad.status == 0 && !peer_gone_) {
      const auto [error, read] = co_await http::async_read_some(socket_, buffer_, parser, kNoThrow);
      if (expired_) {
        bad = {408, "The request body took too long."};
      } else if (error) {
        bad = refusal_of(error, true);
        peer_gone_ = bad.status == 0;
      } else if (!lease.grow_to(parser.get().body().size())) {
        bad = {503, "The server holds too many request bodies at once. Retry later."};
      }
    }
    disarm();
    co_return bad;
  }

  // Hands request_ to the application and sends what it answers. A request that is still being
  // worked on when the peer leaves is gone.
  asio::awaitable<bool> answer() {
    live_ = std::make_shared<Live>(server_, std::move(request_));
    server_.handler_.handle(live_);
    bool sent = false;
    if (live_->ended_) {
      sent = co_await send();
    } else {
      const auto result = co_await (send() || watch());
      sent = result.index() == 0 && std::get<0>(result) && !peer_gone_;
    }
    finish(sent);
    keep_alive_ = keep_alive_ && sent && !server_.draining_;
    co_return keep_alive_;
  }

  // Answers request_ without asking the application.
  // NOLINTNEXTLINE(cppcoreguidelines-avoid-reference-coroutine-parameters): outlives the call
  asio::awaitable<bool> send_whole(HttpResponse& response) {
    live_ = std::make_shared<Live>(server_, std::move(request_));
    live_->respond(std::move(response));
    const bool sent = co_await send();
    finish(sent);
    keep_alive_ = keep_alive_ && sent;
    co_return keep_alive_;
  }

  asio::awaitable<void> refuse(Refusal refusal) {
    if (refusal.status == 0) {
      co_return;
    }
    keep_alive_ = false;
    if (request_.id.empty()) {
      request_.id = "req_" + server_.ids_.next_id();
    }
    HttpResponse response =
        server_.handler_.connection_error(refusal.status, refusal.message, request_.path);
    co_await send_whole(response);
  }

  void finish(bool sent) {
    const std::shared_ptr<Live> live = std::exchange(live_, nullptr);
    live->close(sent);
    if (!sent) {
      cut();
    }
  }

  // Sends the answer of live_ as it comes. True when all of it was sent.
  asio::awaitable<bool> send() {
    while (!live_->started_ && !live_->aborted_ && !peer_gone_) {
      co_await live_->wake_.async_wait(kNoThrow);
    }
    if (live_->aborted_ || peer_gone_) {
      co_return false;
    }
    const bool chunked = live_->streaming_ && version_ >= 11;
    keep_alive_ = keep_alive_ && (chunked || !live_->streaming_) && !server_.draining_;
    const std::string head = head_text(*live_, chunked);
    bool sent = co_await send_bytes(head);
    while (sent && !live_->aborted_ && !peer_gone_) {
      if (!live_->out_.empty()) {
        sent = co_await send_part(chunked);
        live_->room();
      } else if (live_->ended_) {
        if (chunked && !head_only_) {
          sent = co_await send_bytes(kLastChunk);
        }
        co_return sent;
      } else {
        live_->wake_.expires_after(server_.options_.quiet_interval);
        const auto [woken] = co_await live_->wake_.async_wait(kNoThrow);
        if (!woken && !live_->aborted_ && !peer_gone_) {
          live_->quiet();
        }
      }
    }
    co_return false;
  }

  asio::awaitable<bool> send_part(bool chunked) {
    std::string part = std::exchange(live_->out_, {});
    if (head_only_) {
      co_return true;
    }
    live_->sending_bytes_ = part.size();
    if (chunked) {
      part.insert(0, fmt::format("{:x}\r\n", part.size())).append("\r\n");
    }
    bool sent = true;
    for (std::size_t at = 0; at < part.size() && sent; at += kWriteBytes) {
      const std::string_view piece = std::string_view(part).substr(at, kWriteBytes);
      sent = co_await send_bytes(piece);
    }
    live_->sending_bytes_ = 0;
    co_return sent;
  }

  // `bytes` must stay until the end of the call.
  asio::awaitable<bool> send_bytes(std::string_view bytes) {
    arm(server_.options_.write_timeout);
    const auto [error, written] =
        co_await asio::async_write(socket_, asio::buffer(bytes.data(), bytes.size()), kNoThrow);
    disarm();
    co_return !error && !expired_;
  }

  std::string head_text(const Live& live, bool chunked) const {
    const HttpResponse& response = live.head_;
    std::string text =
        fmt::format("HTTP/1.1 {} {}\r\ndate: {}\r\n", response.status,
                    reason_phrase(response.status), http_date(server_.clock_.unix_seconds()));
    for (const HttpHeader& header : response.headers) {
      append_header(header.name, header.value, text);
    }
    append_header("x-request-id", live.request_.id, text);
    if (chunked) {
      text += "transfer-encoding: chunked\r\n";
    } else if (!live.streaming_) {
      text += fmt::format("content-length: {}\r\n", live.out_.size());
    }
    if (!keep_alive_) {
      text += "connection: close\r\n";
    } else if (version_ < 11) {
      text += "connection: keep-alive\r\n";
    }
    return text += "\r\n";
  }

  // Runs beside send(): ends when the peer has closed. Keeps what a pipelining client sends.
  asio::awaitable<void> watch() {
    while (buffer_.size() < kPipelineBytesMax) {
      const auto [error, read] =
          co_await socket_.async_read_some(buffer_.prepare(kReadBytes), kNoThrow);
      if (error) {
        peer_gone_ = error != asio::error::operation_aborted;
        co_return;
      }
      buffer_.commit(read);
    }
    const auto [error] = co_await socket_.async_wait(tcp::socket::wait_error, kNoThrow);
    peer_gone_ = error != asio::error::operation_aborted;
  }

  // Says that nothing more comes and reads on for a moment: closing with unread bytes would reset
  // the connection, and the peer might never see our last answer.
  asio::awaitable<void> linger() {
    error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    if (ignored) {
      co_return;
    }
    arm(server_.options_.linger_timeout);
    std::array<char, kReadBytes> trash;  // NOLINT(cppcoreguidelines-pro-type-member-init)
    for (std::size_t dropped = 0; dropped < kLingerBytesMax && !expired_;) {
      const auto [error, read] = co_await socket_.async_read_some(asio::buffer(trash), kNoThrow);
      if (error) {
        break;
      }
      dropped += read;
    }
    disarm();
  }

  Impl& server_;
  Socket socket_;
  Timer deadline_;
  beast::flat_buffer buffer_;  // read, not yet parsed
  std::uint64_t epoch_ = 0;    // of the armed deadline; an older one that fires late is ignored
  bool expired_ = false;
  bool idle_ = false;  // no request has begun
  bool peer_gone_ = false;
  HttpRequest request_;  // being read
  bool keep_alive_ = false;
  bool head_only_ = false;
  unsigned version_ = 11;
  std::shared_ptr<Live> live_;  // owners: this connection, the handler while it computes
};

Result<void> HttpServer::Impl::listen() {
  error_code error;
  const asio::ip::address address = asio::ip::make_address(options_.address, error);
  if (error) {
    return fail(Code::kInvalidArgument,
                fmt::format("'{}' is not an IP address to listen on", options_.address));
  }
  const tcp::endpoint endpoint(address, options_.port);
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
    return fail(Code::kUnavailable, fmt::format("cannot listen on {}:{}: {}", options_.address,
                                                options_.port, error.message()));
  }
  port_ = acceptor_.local_endpoint().port();
  asio::co_spawn(io_, accept(), asio::detached);
  return {};
}

asio::awaitable<void> HttpServer::Impl::accept() {
  Timer retry(io_);
  while (acceptor_.is_open()) {
    auto [error, accepted] = co_await acceptor_.async_accept(io_.get_executor(), kNoThrow);
    if (!accepting_) {
      co_return;
    }
    if (error) {
      retry.expires_after(kAcceptRetry);
      co_await retry.async_wait(kNoThrow);
      continue;
    }
    Socket socket(std::move(accepted));
    if (connections_.size() >= options_.connections_max) {
      refuse_connection(std::move(socket));
      continue;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    auto connection = std::make_shared<Connection>(*this, std::move(socket));
    asio::co_spawn(io_, Connection::run(std::move(connection)), asio::detached);
  }
}

// Best effort, without waiting: being full must not cost a place.
void HttpServer::Impl::refuse_connection(Socket socket) {
  const HttpResponse response = handler_.connection_error(
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

HttpRequest HttpServer::Impl::to_request(const Parser& parser) {
  const auto& head = parser.get();
  HttpRequest request;
  request.method = view(head.method_string());
  request.path = path_of_target(view(head.target()));
  for (const auto& field : head) {
    request.headers.push_back(
        {to_lower(view(field.name_string())), std::string(view(field.value()))});
  }
  const std::string* id = request.header("x-request-id");
  request.id = id != nullptr && is_request_id(*id) ? *id : "req_" + ids_.next_id();
  return request;
}

bool HttpServer::Impl::offload(std::move_only_function<void()> task) {
  if (ending_) {
    return false;
  }
  if (tasks_waiting_.fetch_add(1) >= options_.worker_queue_max) {
    --tasks_waiting_;
    return false;
  }
  asio::post(workers_, [this, task = std::move(task)]() mutable {
    --tasks_waiting_;
    task();
  });
  return true;
}

void HttpServer::Impl::register_connection(Connection* connection) {
  connections_.insert(connection);
  connection_count_ = connections_.size();
}

void HttpServer::Impl::forget_connection(Connection* connection) {
  connections_.erase(connection);
  connection_count_ = connections_.size();
  if (!accepting_ && connections_.empty()) {
    drained_.set_value();
  }
}

void HttpServer::Impl::stop_accepting() {
  if (!std::exchange(accepting_, false)) {
    return;
  }
  error_code ignored;
  acceptor_.close(ignored);
  if (connections_.empty()) {
    drained_.set_value();
  }
  for (Connection* connection : connections_) {
    connection->close_if_idle();
  }
}

bool HttpServer::Impl::drain(Duration bound) {
  close_after_answers();
  std::future<void> drained = drained_.get_future();
  asio::post(io_, [this] { stop_accepting(); });
  return drained.wait_for(bound) == std::future_status::ready;
}

HttpServer::Impl::~Impl() {
  // Waited for: once this ran no task comes behind those that the next line waits for.
  asio::post(io_, asio::use_future([this] {
               ending_ = true;
               close_after_answers();
               stop_accepting();
               for (Connection* connection : connections_) {
                 connection->cut();
               }
             }))
      .wait();
  workers_.join();
  io_.join();  // every coroutine ends: its socket is closed, its timers are cancelled
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
