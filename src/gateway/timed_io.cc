#include "gateway/timed_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <utility>

#include <boost/asio/error.hpp>

namespace galley::gateway {

namespace {

// A peer that vanished without a word is noticed after kProbeAfterS + kProbesMax * kProbeEveryS.
constexpr int kProbeAfterS = 15;
constexpr int kProbeEveryS = 15;
constexpr int kProbesMax = 4;

using ProbeAfterS = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPIDLE>;
using ProbeEveryS = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPINTVL>;
using ProbesMax = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_KEEPCNT>;

}  // namespace

using Timer = asio::steady_timer;

struct TimedSocket::State {
  explicit State(tcp::socket new_socket)
      : socket(std::move(new_socket)), timer(socket.get_executor(), Timer::time_point::max()) {}
  [[nodiscard]] bool expired() const { return timer.expiry() <= Timer::clock_type::now(); }
  // Why a wait ended with `error`.
  [[nodiscard]] error_code reason(const error_code& error) const {
    return error && expired() ? asio::error::timed_out : error;
  }

  tcp::socket socket;
  Timer timer;
};

TimedSocket::TimedSocket(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {}

TimedSocket::~TimedSocket() {
  close();
  clear_deadline();
}

void TimedSocket::set_deadline(Duration bound) {
  state_->timer.expires_after(bound);
  // A handler that was on its way when the deadline moved finds the new one not passed.
  state_->timer.async_wait([state = state_](const error_code& error) {
    if (!error && state->expired()) {
      error_code ignored;
      state->socket.cancel(ignored);
    }
  });
}

void TimedSocket::clear_deadline() {
  state_->timer.expires_at(Timer::time_point::max());
}

bool TimedSocket::expired() const {
  return state_->expired();
}

asio::awaitable<TimedSocket::Moved> TimedSocket::read_some(asio::mutable_buffer into) {
  if (expired()) {
    co_return Moved{asio::error::timed_out};
  }
  const auto [error, bytes] = co_await state_->socket.async_read_some(into, kNoThrow);
  co_return Moved{state_->reason(error), bytes};
}

asio::awaitable<error_code> TimedSocket::write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (expired()) {
      co_return asio::error::timed_out;
    }
    const auto [error, written] =
        co_await state_->socket.async_write_some(asio::buffer(bytes), kNoThrow);
    if (error) {
      co_return state_->reason(error);
    }
    bytes.remove_prefix(written);
  }
  co_return error_code{};
}

asio::awaitable<error_code> TimedSocket::wait_broken() {
  if (expired()) {
    co_return asio::error::timed_out;
  }
  const auto [error] = co_await state_->socket.async_wait(tcp::socket::wait_error, kNoThrow);
  co_return state_->reason(error);
}

void TimedSocket::cancel() {
  error_code ignored;
  state_->socket.cancel(ignored);
}

void TimedSocket::close() {
  error_code ignored;
  state_->socket.close(ignored);
}

void TimedSocket::probe_silent_peer() {
  error_code ignored;
  state_->socket.set_option(asio::socket_base::keep_alive(true), ignored);
  state_->socket.set_option(ProbeAfterS(kProbeAfterS), ignored);
  state_->socket.set_option(ProbeEveryS(kProbeEveryS), ignored);
  state_->socket.set_option(ProbesMax(kProbesMax), ignored);
}

bool TimedSocket::shut_down_sending() {
  error_code error;
  state_->socket.shutdown(tcp::socket::shutdown_send, error);
  return !error;
}

asio::awaitable<void> Wakeup::wait() {
  timer_.expires_at(Timer::time_point::max());
  co_await timer_.async_wait(kNoThrow);
}

asio::awaitable<bool> Wakeup::wait_for(Duration limit) {
  timer_.expires_after(limit);
  const auto [error] = co_await timer_.async_wait(kNoThrow);
  co_return static_cast<bool>(error);
}

}  // namespace galley::gateway
