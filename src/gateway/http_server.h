#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/result.h"
#include "gateway/exchange.h"
#include "recipe/reply.h"

// HTTP/1.1 on a socket: bytes, limits, the life of connections. It knows no route.
namespace galley::gateway {

// Every bound of the server. A peer that is slow, large or silent costs at most these.
struct HttpOptions {
  std::string address = "127.0.0.1";
  std::uint16_t port = 8080;  // 0: any free one, see HttpServer::port

  std::size_t connections_max = 1024;                     // one more is answered 503 and closed
  std::size_t header_bytes_max = std::size_t{32} << 10U;  // 431
  std::size_t header_count_max = 100;                     // 431
  std::size_t target_bytes_max = std::size_t{8} << 10U;   // 414
  std::size_t body_bytes_max = std::size_t{48} << 20U;    // 413, one request
  std::size_t bodies_bytes_max = std::size_t{1} << 30U;   // 503, all requests under way together

  std::size_t worker_count = 2;        // threads for Exchange::offload
  std::size_t worker_queue_max = 256;  // tasks that wait for one

  Duration idle_timeout =
      std::chrono::milliseconds(75'000);  // until a request begins: closed silently
  Duration header_timeout = std::chrono::milliseconds(10'000);  // first byte to end of header: 408
  Duration body_timeout = std::chrono::milliseconds(120'000);   // end of header to end of body: 408
  Duration write_timeout =
      std::chrono::milliseconds(30'000);  // one write of at most 64 KiB: closed
  Duration linger_timeout = std::chrono::milliseconds(2'000);  // for a peer to read our last bytes
  Duration quiet_interval =
      std::chrono::milliseconds(10'000);  // silence of a stream before on_quiet
};

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
  // `bound`. True when all did. Once; blocks; not to be called from a handler.
  bool drain(Duration bound);

 private:
  class Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace galley::gateway
