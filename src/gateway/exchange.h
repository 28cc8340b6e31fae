#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

// One HTTP request and its answer, as the routes see them: no sockets, no Asio. gateway/http_server
// implements Exchange over a connection, tests implement it in memory.
namespace galley::gateway {

struct HttpHeader {
  std::string name;  // lower case
  std::string value;
};

// The bytes of a request body. Moving it on moves the place it takes in the server's budget.
struct HttpBody {
  std::string text;
  std::shared_ptr<const void> lease;  // ends, on any thread, when the body dies; null: none
};

struct HttpRequest {
  std::string id;      // echoed as x-request-id, in every reply and log line
  std::string method;  // as sent; HEAD is answered as GET, and the body of the reply is left out
  std::string path;    // without query, still percent-encoded
  std::string query;   // what follows its '?', as sent
  std::vector<HttpHeader> headers;  // in order of arrival
  HttpBody body;                    // whoever needs it for long or elsewhere moves it out

  // Value of the first header of that (lower case) name, nullptr when there is none.
  [[nodiscard]] const std::string* header(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::vector<HttpHeader>
      headers;  // content-length, connection, date, x-request-id are the server's
  std::string body;
};

// How an exchange ended, for the log and the counters.
struct ExchangeSummary {
  const HttpRequest& request;  // path empty when it was not understood
  int status{};                // of the head; 0 when the client left before there was one
  bool complete{};             // false: the client did not get all of it
  Duration took{};             // from the complete request to its end
  std::optional<Duration> first_token = {};  // from there to the first token of an answer
};

// What wants to hear about an exchange that goes on for a while. Called on the connection's thread.
class ExchangeListener {
 public:
  virtual ~ExchangeListener() = default;
  // The client went away, stopped reading, or the server closes: stop working. The last call.
  virtual void on_gone() = 0;
  // Bytes were sent: there is room for more.
  virtual void on_room() = 0;
  // The server ends before the answer does: end it now, with an error. At most once; it may come
  // inside Exchange::listen().
  virtual void on_stop() = 0;
  // A stream was silent for HttpOptions::keep_alive_interval: a keep-alive is due.
  virtual void on_keep_alive() = 0;
};

// Owned by its connection and by whoever answers, none of whom outlives the server. Everything but
// `post` and `gone` belongs to the connection's thread. After the client has gone every call is
// accepted and does nothing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  [[nodiscard]] virtual HttpRequest& request() = 0;

  // The whole answer. Either this, once, or the three calls for a stream.
  virtual void respond(HttpResponse response) = 0;

  // Sends the head at once; `head.body` must be empty.
  virtual void start_stream(HttpResponse head) = 0;
  // Queues bytes; whoever writes keeps unsent_bytes() bounded.
  virtual void write(std::string_view bytes) = 0;
  [[nodiscard]] virtual std::size_t unsent_bytes() const = 0;
  virtual void end_stream() = 0;
  // The answer has tokens. Later calls change nothing.
  virtual void note_token() {}
  // Cuts the connection without the end mark: a broken answer is never taken for a complete one.
  virtual void abort() = 0;

  // From any thread.
  [[nodiscard]] virtual bool gone() const = 0;
  // Kept until the exchange ends, then released (a listener may own the exchange).
  virtual void listen(std::shared_ptr<ExchangeListener> listener) = 0;

  // Runs `task` on the connection's thread, never inside this call. From any thread.
  virtual void post(std::move_only_function<void()> task) = 0;
  // Runs `task` on one of a few other threads: parsing and tokenising megabytes must not hold up
  // other connections. False when too many tasks wait already, or the server ends.
  [[nodiscard]] virtual bool offload(std::move_only_function<void()> task) = 0;
};

// The application behind a server. Called on the connection's thread; must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request whose body was not read yet. A response ends it there: an unknown route is
  // refused before 48 MiB were uploaded to it.
  [[nodiscard]] virtual std::optional<HttpResponse> refuse_early(const HttpRequest& head) = 0;
  // Answers now or later through `exchange`.
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // Body of an error the connection found by itself (malformed, too large, too slow). `path` is
  // empty when it was not understood.
  [[nodiscard]] virtual HttpResponse connection_error(int status,
                                                      std::string_view message,
                                                      std::string_view path) = 0;
  virtual void finished(const ExchangeSummary& summary) = 0;
  // How many connections are open now.
  virtual void connection_count_changed(std::size_t count) = 0;
};

}  // namespace galley::gateway
