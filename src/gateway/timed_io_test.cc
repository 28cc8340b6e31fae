// Goal: a deadline ends every wait on a socket, also one that begins when it has passed already.
// Method: a pair of connected sockets and an io_context that the test runs; "between two waits" is
// a coroutine that yields until the deadline is over, so that its timer fires while nothing waits.
#include "gateway/timed_io.h"

#include <array>
#include <functional>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <utility>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/post.hpp>

namespace galley::gateway {
namespace {

using namespace std::chrono_literals;

class TimedSocketTest : public testing::Test {
 protected:
  TimedSocketTest() {
    tcp::acceptor acceptor(io_, {asio::ip::address_v4::loopback(), 0});
    peer_.connect(acceptor.local_endpoint());
    tcp::socket socket = acceptor.accept();
    fd_ = socket.native_handle();
    socket_.emplace(std::move(socket));
  }
  // Runs a coroutine to its end, for as long as anybody would wait.
  void run(std::function<asio::awaitable<void>()> body) {
    bool done = false;
    asio::co_spawn(
        io_,
        [&]() -> asio::awaitable<void> {
          co_await body();
          done = true;
        },
        asio::detached);
    io_.restart();
    io_.run_for(5s);
    EXPECT_TRUE(done) << "still waits";
  }
  asio::awaitable<void> wait_until_expired() {
    while (!socket_->expired()) {
      co_await asio::post(io_, asio::use_awaitable);
    }
    co_await asio::post(io_, asio::use_awaitable);  // behind the timer's handler
  }

  asio::io_context io_;
  tcp::socket peer_{io_};
  int fd_ = -1;  // socket_'s
  std::optional<TimedSocket> socket_;
  std::array<char, 16> bytes_{};
};

TEST_F(TimedSocketTest, SendsAtOnceAndNoticesAPeerThatVanished) {
  const auto option = [this](int level, int name) {
    int value = -1;
    socklen_t bytes = sizeof value;
    EXPECT_EQ(getsockopt(fd_, level, name, &value, &bytes), 0);
    return value;
  };
  EXPECT_NE(option(IPPROTO_TCP, TCP_NODELAY), 0);
  EXPECT_NE(option(SOL_SOCKET, SO_KEEPALIVE), 0);
  const int probes_s = option(IPPROTO_TCP, TCP_KEEPIDLE) +
                       option(IPPROTO_TCP, TCP_KEEPCNT) * option(IPPROTO_TCP, TCP_KEEPINTVL);
  EXPECT_EQ(probes_s, 75);
  EXPECT_EQ(option(IPPROTO_TCP, TCP_USER_TIMEOUT), 75'000);
}

TEST_F(TimedSocketTest, ADeadlineEndsTheReadUnderWay) {
  run([this]() -> asio::awaitable<void> {
    socket_->set_deadline(10ms);
    const auto [error, count] = co_await socket_->read_some(asio::buffer(bytes_));
    EXPECT_EQ(error, asio::error::timed_out);
  });
}

TEST_F(TimedSocketTest, ADeadlineThatPassesBetweenTwoReadsEndsTheSecond) {
  run([this]() -> asio::awaitable<void> {
    peer_.send(asio::buffer("ab", 2));
    socket_->set_deadline(1h);
    const auto [first, count] = co_await socket_->read_some(asio::buffer(bytes_.data(), 1));
    EXPECT_FALSE(first);
    EXPECT_EQ(count, 1U);
    socket_->set_deadline(1ms);
    co_await wait_until_expired();
    // A byte is there, and yet nothing is read.
    const auto [second, none] = co_await socket_->read_some(asio::buffer(bytes_));
    EXPECT_EQ(second, asio::error::timed_out);
    EXPECT_EQ(none, 0U);
  });
}

TEST_F(TimedSocketTest, ADeadlineThatPassesBetweenTwoWritesEndsTheSecond) {
  run([this]() -> asio::awaitable<void> {
    socket_->set_deadline(1h);
    const error_code first = co_await socket_->write("a");
    EXPECT_FALSE(first);
    socket_->set_deadline(1ms);
    co_await wait_until_expired();
    const error_code second = co_await socket_->write("b");
    EXPECT_EQ(second, asio::error::timed_out);
    const error_code broken = co_await socket_->wait_broken();
    EXPECT_EQ(broken, asio::error::timed_out);
  });
}

TEST_F(TimedSocketTest, ADeadlineEndsAWriteThatThePeerDoesNotTake) {
  const std::string much(std::size_t{64} << 20U, 'x');  // more than the kernel buffers
  run([this, &much]() -> asio::awaitable<void> {
    socket_->set_deadline(20ms);
    const error_code error = co_await socket_->write(much);
    EXPECT_EQ(error, asio::error::timed_out);
  });
}

TEST_F(TimedSocketTest, ALaterDeadlineReplacesOneThatHasPassed) {
  run([this]() -> asio::awaitable<void> {
    socket_->set_deadline(1ms);
    co_await wait_until_expired();
    socket_->set_deadline(5s);
    peer_.send(asio::buffer("a", 1));
    const auto [error, count] = co_await socket_->read_some(asio::buffer(bytes_));
    EXPECT_FALSE(error) << error.message();
    socket_->set_deadline(1ms);
    socket_->clear_deadline();
    EXPECT_FALSE(socket_->expired());
  });
}

TEST_F(TimedSocketTest, ACancelIsNoTimeOut) {
  run([this]() -> asio::awaitable<void> {
    socket_->set_deadline(5s);
    asio::post(io_, [this] { socket_->cancel(); });
    const auto [error, count] = co_await socket_->read_some(asio::buffer(bytes_));
    EXPECT_EQ(error, asio::error::operation_aborted);
    peer_.close();
    const auto [end, none] = co_await socket_->read_some(asio::buffer(bytes_));
    EXPECT_EQ(end, asio::error::eof);
    socket_->clear_deadline();  // or the test would wait for it
  });
}

TEST_F(TimedSocketTest, MayDieWhileItsDeadlineRuns) {
  run([this]() -> asio::awaitable<void> {
    socket_->set_deadline(1ms);
    co_await wait_until_expired();
    socket_->set_deadline(1ms);
    socket_.reset();
  });
}

TEST(WakeupTest, SaysWhetherItWasWokenOrTheLimitPassed) {
  asio::io_context io;
  Wakeup wakeup(io);
  bool late = true;
  bool woken = false;
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        late = co_await wakeup.wait_for(1ms);
        asio::post(io, [&] { wakeup.wake(); });
        woken = co_await wakeup.wait_for(5s);
        asio::post(io, [&] { wakeup.wake(); });
        co_await wakeup.wait();
      },
      asio::detached);
  io.run_for(10s);
  EXPECT_TRUE(io.stopped());
  EXPECT_FALSE(late);
  EXPECT_TRUE(woken);
}

}  // namespace
}  // namespace galley::gateway
