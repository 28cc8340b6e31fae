#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/secret.h"
#include "base/units.h"

// What asks other servers: for tokens (sources/foreign.h), and for `galley chat` and `galley
// bench`.
namespace galley::gateway {

// Of a server that may send anything, or nothing: more ends the request with an error.
struct HttpBounds {
  // Of one reply. A streamed token is some hundred bytes: a million of them fit.
  std::size_t reply_bytes = std::size_t{1} << 30U;
  std::size_t fetched_bytes = std::size_t{64} << 20U;  // of one that is kept whole
  // Without a byte. Long: a server that reads a long prompt may be silent as long.
  std::chrono::seconds silence{900};
};
// Of one event, and of one line of it.
inline constexpr std::size_t kEventBytesMax = std::size_t{16} << 20U;

struct HttpAsk {
  std::string url;
  std::string body;                       // JSON to POST; empty: GET
  Secret key;                             // empty: none is sent
  bool streams = false;                   // only a stream of events is an answer
  bool direct = false;                    // past the proxies that the environment names
  std::vector<std::string> headers = {};  // more of them, as "name: value"
  // Of all of it, from the connection to the last byte. Zero: the bounds of the client alone.
  std::chrono::milliseconds total_max{};
};

// The address of a server as an operator writes it. Error: kInvalidArgument, `where`, for one that
// is no http:// or https://, or has a name or a password, which every log would show.
[[nodiscard]] Result<void> check_server_url(std::string_view url, std::string_view where);

// One answer as it comes. Called on the client's thread.
struct HttpAnswer {
  // A piece of the body of a 2xx. An error breaks the request off and is what it ends with.
  std::function<Result<void>(std::string_view bytes)> on_bytes;
  // Once. Error: no connection, one that broke, another status: with the server's message; a reply
  // past a bound, or that is none to what was asked.
  std::function<void(Result<void> ended)> on_end;
};

// Any number of requests at once, on the one thread that calls it, wake() apart. HTTP and HTTPS;
// follows no redirection, so that a key goes where it was meant to.
class HttpClient {
 public:
  explicit HttpClient(const HttpBounds& bounds = {});
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // A name for cancel().
  std::uint64_t start(const HttpAsk& ask, HttpAnswer answer);
  // Breaks the request off without a call, and closes its connection; none of that name: nothing.
  // Not from within a call of an answer.
  void cancel(std::uint64_t id);
  [[nodiscard]] std::size_t under_way() const;
  // Moves bytes and calls answers; waits for something to happen first, at most for `limit`.
  void run(Duration limit);
  // Ends the wait of run(), or of the next one. From any thread.
  void wake();
  // Breaks off everything without a call.
  void stop();

  // The whole body of one request. Error: kTooLarge past `fetched_bytes`.
  [[nodiscard]] Result<std::string> fetch(const HttpAsk& ask);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The `data:` of server-sent events, whole, whatever the pieces they come in.
class SseReader {
 public:
  // Calls `on_data` for each event that has some. Error: kTooLarge past kEventBytesMax; nothing is
  // to be fed then.
  Result<void> feed(std::string_view bytes,
                    const std::function<void(std::string_view data)>& on_data);

 private:
  std::string line_;
  std::string data_;
};

}  // namespace galley::gateway
