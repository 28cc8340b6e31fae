#pragma once

#include <arpa/inet.h>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace galley::gateway {

// A client that sends exactly the bytes it is told to, so that tests can be slow, malformed or
// rude. Every wait is bounded by kPatienceMs; a test that runs into it fails.
class SocketClient {
 public:
  static constexpr int kPatienceMs = 5000;

  explicit SocketClient(std::uint16_t port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  ~SocketClient() { close(); }
  SocketClient(const SocketClient&) = delete;
  SocketClient& operator=(const SocketClient&) = delete;

  [[nodiscard]] bool connected() const { return connected_; }

  // False when the server has closed.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Reads until all that was read contains `mark`, and returns and forgets it up to there.
  std::string read_until(std::string_view mark) {
    while (true) {
      if (const std::size_t at = read_.find(mark); at != std::string::npos) {
        std::string part = read_.substr(0, at + mark.size());
        read_.erase(0, part.size());
        return part;
      }
      if (!read_some()) {
        ADD_FAILURE() << "closed or silent before '" << mark << "', after: " << read_;
        return read_;
      }
    }
  }

  // Reads one response that has a content-length.
  std::string read_response() {
    std::string head = read_until("\r\n\r\n");
    const std::size_t at = head.find("content-length: ");
    if (at == std::string::npos) {
      ADD_FAILURE() << "no content-length: " << head;
      return head;
    }
    const auto length = static_cast<std::size_t>(std::strtoul(head.c_str() + at + 16, nullptr, 10));
    while (read_.size() < length && read_some()) {
    }
    EXPECT_GE(read_.size(), length);
    head += read_.substr(0, length);
    read_.erase(0, length);
    return head;
  }

  // Reads until the server closes.
  std::string read_all() {
    while (read_some()) {
    }
    EXPECT_TRUE(closed_) << "the server did not close after: " << read_;
    return std::exchange(read_, {});
  }

  // What has arrived within a moment; empty when nothing has.
  std::string try_read() {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    return poll(&ready, 1, 1) == 1 && read_some() ? std::exchange(read_, {}) : std::string();
  }

  void shut_down_sending() { shutdown(fd_, SHUT_WR); }
  void close() {
    if (fd_ >= 0) {
      ::close(std::exchange(fd_, -1));
    }
  }
  // Closes with a reset, as a killed process or a dropped network would look.
  void reset() {
    const linger hard{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close();
  }

 private:
  bool read_some() {
    pollfd ready{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&ready, 1, kPatienceMs) != 1) {
      return false;
    }
    char part[16384];
    const ssize_t got = recv(fd_, part, sizeof part, 0);
    if (got <= 0) {
      closed_ = true;
      return false;
    }
    read_.append(part, static_cast<std::size_t>(got));
    return true;
  }

  int fd_;
  bool connected_ = false;
  bool closed_ = false;
  std::string read_;
};

}  // namespace galley::gateway
