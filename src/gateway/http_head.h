#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "gateway/exchange.h"
#include "gateway/http_options.h"

namespace galley::gateway {

// A request that must not be served, with the status that says so. Its connection is closed: what
// follows could be read in two ways.
struct Refusal {
  int status = 0;  // 0: there is nothing to refuse
  std::string_view message;
};

// What stands before the body of a request.
struct HttpHead {
  HttpRequest request;            // without body; id empty unless the client chose a good one
  bool http_1_1 = true;           // else 1.0: no chunks, no 100-continue
  bool persistent = false;        // the client may send another request on this connection
  bool no_reply_body = false;     // HEAD
  bool expects_continue = false;  // the client waits for "100 Continue" before it sends the body
  bool chunked = false;
  std::uint64_t body_bytes = 0;  // 0 when chunked
  [[nodiscard]] bool has_body() const { return chunked || body_bytes > 0; }
};

// Bytes -> HttpHead, within the limits of `options`. Beast reads the syntax; the rules of RFC 9112
// that it leaves to its caller are here: whatever a proxy in front of us could read differently
// (two lengths, unknown codings) is refused.
class HeadParser {
 public:
  // `options` must outlive the parser.
  explicit HeadParser(const HttpOptions& options);
  ~HeadParser();
  HeadParser(const HeadParser&) = delete;
  HeadParser& operator=(const HeadParser&) = delete;

  // Takes what it can use from the front of `bytes`, and says how much that was; the caller keeps
  // the rest. It needs more, unless done() or refused afterwards.
  std::size_t feed(std::string_view bytes);
  [[nodiscard]] bool done() const;
  [[nodiscard]] const Refusal& refusal() const;
  // What was understood, also of a head that is refused or incomplete.
  [[nodiscard]] HttpHead head() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace galley::gateway
