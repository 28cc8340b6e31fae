#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "base/units.h"

// Waiting for a socket or for another coroutine, never longer than a bound. The only place that
// names Asio's timers: they share the reactor of the sockets. Everything here belongs to one
// io_context that one thread runs.
namespace galley::gateway {

namespace asio = boost::asio;
using tcp = asio::ip::tcp;
using boost::system::error_code;

inline constexpr auto kNoThrow = asio::as_tuple(asio::use_awaitable);

// A connected socket whose every wait ends at one deadline. The deadline is a time, and each wait
// looks at it before it begins: one that passes between two waits ends the second at once.
class TimedSocket {
 public:
  struct Moved {
    error_code error;  // asio::error::timed_out: the deadline has passed
    std::size_t bytes = 0;
  };

  // Has the kernel send what is written at once, and end the waits once the peer has been gone for
  // 75 s: it answers nothing, or takes nothing of what is sent.
  explicit TimedSocket(tcp::socket socket);
  ~TimedSocket();
  TimedSocket(const TimedSocket&) = delete;
  TimedSocket& operator=(const TimedSocket&) = delete;

  // Replaces the deadline. At first there is none.
  void set_deadline(Duration bound);
  void clear_deadline();
  [[nodiscard]] bool expired() const;

  // One read of at least a byte. asio::error::eof: the peer sends no more.
  asio::awaitable<Moved> read_some(asio::mutable_buffer into);
  // All of `bytes`, which must stay until the end of the call.
  asio::awaitable<error_code> write(std::string_view bytes);
  // Until the connection breaks.
  asio::awaitable<error_code> wait_broken();

  // Ends the waits under way with asio::error::operation_aborted.
  void cancel();
  void close();
  // False when the connection is broken already.
  bool shut_down_sending();

 private:
  struct State;
  std::shared_ptr<State> state_;  // owners: this, the handler of its timer
};

// What one coroutine waits on until something wakes it. A wake() that nobody waits for is
// forgotten: look at the condition first, as with a condition variable.
class Wakeup {
 public:
  explicit Wakeup(asio::io_context& io) : timer_(io) {}

  void wake() { timer_.cancel(); }
  asio::awaitable<void> wait();
  // False when `limit` passed without a wake().
  asio::awaitable<bool> wait_for(Duration limit);

 private:
  asio::steady_timer timer_;
};

}  // namespace galley::gateway
