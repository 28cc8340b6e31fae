#include "tests/load/slow_reader.h"

#include <arpa/inet.h>
#include <cerrno>
#include <chrono>
#include <fmt/core.h>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <unistd.h>

namespace galley::load {
namespace {

using namespace std::chrono_literals;

constexpr Duration kEvery = 100ms;
constexpr std::size_t kBytes = 512;
constexpr int kRoomBytes = 4096;

}  // namespace

SlowReader::SlowReader(std::uint16_t port, std::size_t request_id, std::string_view body)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &kRoomBytes, sizeof kRoomBytes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nhost: load\r\nx-request-id: {}\r\n"
      "content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{}",
      request_id, body.size(), body);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    ::send(socket_, request.data(), request.size(), MSG_NOSIGNAL);
  }
}

SlowReader::~SlowReader() {
  ::close(socket_);
}

bool SlowReader::read_a_little(TimeNs now) {
  if (now < next_) {
    return true;
  }
  next_ = now + kEvery;
  char bytes[kBytes];
  const ssize_t got = ::recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
  return got > 0 || (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK));
}

}  // namespace galley::load
