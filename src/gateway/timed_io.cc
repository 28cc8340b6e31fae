#include "gateway/timed_io.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <utility>

#include <boost/asio/error.hpp>

namespace galley::gateway {

namespace {

// A silent peer is probed after kProbeAfterS, then every kProbeEveryS, kProbesMax times.
constexpr int kProbeAfterS = 15;
constexpr int kProbeEveryS = 15;
constexpr int kProbesMax = 4;
// Without an answer to them, or while it takes nothing of what is sent, it is gone after this long.
constexpr int kPeerGoneMs = 1'000 * (kProbeAfterS + kProbesMax * kProbeEveryS);

// Small pieces of a stream leave at once. The kernel looks after peers that vanish without a word:
// probes while nothing is under way, a time limit (which probes do not have) while something is.
void set_options(tcp::socket& socket) {
  error_code ignored;
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(asio::socket_base::keep_alive(true), ignored);
  const auto set = [&socket](int name, int value) {
    setsockopt(socket.native_handle(), IPPROTO_TCP, name, &value, sizeof value);
  };
  set(TCP_KEEPIDLE, kProbeAfterS);
  set(TCP_KEEPINTVL, kProbeEveryS);
  set(TCP_KEEPCNT, kProbesMax);
  set(TCP_USER_TIMEOUT, kPeerGoneMs);
}

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

TimedSocket::TimedSocket(tcp::socket socket) : state_(std::make_shared<State>(std::move(socket))) {
  set_options(state_->socket);
}

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
