#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/secret.h"
#include "base/units.h"

// What asks servers: `galley chat --url`, `galley bench --url`.
namespace galley::apps {

struct HttpAsk {
  std::string url;
  std::string body;  // JSON to POST; empty: GET
  Secret key;        // empty: none is sent
};

// One answer as it comes. Called on the client's thread.
struct HttpAnswer {
  // A piece of the body of a 2xx.
  std::function<void(std::string_view bytes)> on_bytes;
  // Once. Error: no connection, one that broke, or another status: with the server's message.
  std::function<void(Result<void> ended)> on_end;
};

// Any number of requests at once, on the thread that runs it. HTTP and HTTPS; follows no
// redirection, so that a key goes where it was meant to.
class HttpClient {
 public:
  HttpClient();
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void start(const HttpAsk& ask, HttpAnswer answer);
  [[nodiscard]] std::size_t under_way() const;
  // Moves bytes and calls answers; waits for something to happen first, at most for `limit`.
  void run(Duration limit);
  // Breaks off everything without a call.
  void stop();

  // The whole body of one request.
  [[nodiscard]] Result<std::string> fetch(const HttpAsk& ask);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The `data:` of server-sent events, whole, whatever the pieces they come in.
class SseReader {
 public:
  // Calls `on_data` for each event that has some.
  void feed(std::string_view bytes, const std::function<void(std::string_view data)>& on_data);

 private:
  std::string line_;
  std::string data_;
};

}  // namespace galley::apps
