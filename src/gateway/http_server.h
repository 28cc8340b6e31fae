#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/result.h"
#include "gateway/exchange.h"
#include "gateway/http_options.h"
#include "recipe/reply.h"

// HTTP/1.1 on sockets: listening, the life of connections, their end. It knows no route.
namespace galley::gateway {

// One thread owns every connection, so no state of theirs needs a lock; whatever computes runs
// elsewhere (Exchange::offload, the token source) and posts its results. A peer that closes while
// its answer is being made counts as gone, also when it closed one direction only.
class HttpServer {
 public:
  // Listens and serves until destruction; the references must outlive the server. `ids` (for
  // x-request-id) is used on the connections' thread only. Errors: kInvalidArgument for an address
  // that is none, kUnavailable when it cannot be bound.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options,
                                                   HttpHandler& handler,
                                                   const Clock& clock,
                                                   recipe::IdSource& ids);

  // Cuts what is still open.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] std::uint16_t port() const;
  [[nodiscard]] std::size_t connection_count() const;

  // From now on each answer says `connection: close` and ends its connection; new connections are
  // still taken. From any thread.
  void close_after_answers();

  // The above, and stops accepting, closes idle connections, lets running requests finish for up to
  // `bound`. True when all did. Those that listen are told to end then (ExchangeListener::on_stop)
  // and have HttpOptions::stop_timeout to say it; the destructor cuts the rest. Returns once every
  // answer is out, also while peers keep their sockets open. Once; blocks; not to be called from a
  // handler.
  bool drain(Duration bound);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::gateway
