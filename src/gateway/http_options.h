#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/units.h"

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
  // One that is larger would never find a place, so waiting is no use: 413.
  [[nodiscard]] std::size_t largest_body_bytes() const {
    return std::min(body_bytes_max, bodies_bytes_max);
  }

  std::size_t codec_threads = 2;          // for Exchange::offload, at least 1
  std::size_t codec_tasks_waiting = 256;  // tasks that wait for one of them, at least 1

  Duration idle_timeout =
      std::chrono::milliseconds(75'000);  // until a request begins: closed silently
  Duration header_timeout = std::chrono::milliseconds(10'000);  // first byte to end of header: 408
  Duration body_timeout = std::chrono::milliseconds(120'000);   // end of header to end of body: 408
  Duration write_timeout =
      std::chrono::milliseconds(30'000);  // one write of at most 64 KiB: closed
  Duration linger_timeout = std::chrono::milliseconds(2'000);  // for a peer to read our last bytes
  Duration stop_timeout =
      std::chrono::milliseconds(2'000);  // for answers to end with an error after a drain: cut
  Duration keep_alive_interval =
      std::chrono::milliseconds(10'000);  // silence of a stream before on_keep_alive
};

}  // namespace galley::gateway
