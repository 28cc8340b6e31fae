// Goal: whatever a server sends or does not send, a request ends, and only an answer counts as one.
// Method: a server of one reply on a socket of this machine.
#include "gateway/http_client.h"

#include <arpa/inet.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <optional>
#include <sys/socket.h>
#include <unistd.h>

#include "base/task_pool.h"

namespace galley::gateway {
namespace {

// Reads a request, sends `reply`, then `more` again and again until the client leaves; without
// `more` it closes, or keeps silent until the client leaves.
class OneReply {
 public:
  OneReply(std::string reply, std::string more = "", bool silent = false)
      : reply_(std::move(reply)), more_(std::move(more)), silent_(silent) {
    socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(socket_, plain, size), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    EXPECT_EQ(::getsockname(socket_, plain, &size), 0);
    url_ = fmt::format("http://127.0.0.1:{}/", ntohs(address.sin_port));
    EXPECT_TRUE(thread_.try_post([this] { serve(); }));
  }
  ~OneReply() {
    thread_.join();
    ::close(socket_);
  }
  OneReply(const OneReply&) = delete;
  OneReply& operator=(const OneReply&) = delete;
  [[nodiscard]] const std::string& url() const { return url_; }

 private:
  void serve() {
    const int peer = ::accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC);
    std::string request(4096, '\0');
    bool open = ::recv(peer, request.data(), request.size(), 0) > 0;
    open = open && send(peer, reply_);
    while (open && !more_.empty()) {
      open = send(peer, more_);
    }
    while (open && silent_ && ::recv(peer, request.data(), request.size(), 0) > 0) {
    }
    ::close(peer);
  }
  static bool send(int peer, std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(peer, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  const std::string reply_;
  const std::string more_;
  const bool silent_;
  int socket_ = -1;
  std::string url_;
  TaskPool thread_{1, 1};
};

std::string head(std::string_view status, std::string_view type) {
  return fmt::format("HTTP/1.1 {}\r\nconnection: close\r\n{}\r\n", status, type);
}
constexpr std::string_view kEvents = "content-type: Text/Event-Stream; charset=utf-8\r\n";

// How a request for a stream ends.
Result<void> stream_of(const OneReply& server, const HttpBounds& bounds = {}) {
  HttpClient client(bounds);
  SseReader reader;
  std::optional<Result<void>> ended;
  client.start(
      {.url = server.url(), .body = "{}", .streams = true},
      {.on_bytes =
           [&](std::string_view bytes) { return reader.feed(bytes, [](std::string_view) {}); },
       .on_end = [&](Result<void> result) { ended = std::move(result); }});
  while (!ended) {
    client.run(std::chrono::milliseconds(50));
  }
  return *ended;
}

TEST(HttpClient, OnlyAStreamOfEventsIsOne) {
  EXPECT_TRUE(stream_of(OneReply(head("200 OK", kEvents) + "data: [DONE]\n\n")));
  const auto page = stream_of(OneReply(head("200 OK", "content-type: text/html\r\n") + "<html>"));
  ASSERT_FALSE(page);
  EXPECT_NE(page.error().what.find("text/html"), std::string::npos) << page.error().what;
  EXPECT_FALSE(stream_of(OneReply(head("200 OK", "") + "data: [DONE]\n\n")));
  EXPECT_FALSE(stream_of(OneReply(head("204 No Content", ""))));
}

TEST(HttpClient, WhatHasNoEndIsBrokenOff) {
  const std::string more(std::size_t{1} << 20U, 'x');
  EXPECT_EQ(stream_of(OneReply(head("200 OK", kEvents), more)).error().code, Code::kTooLarge);
  EXPECT_EQ(stream_of(OneReply(head("200 OK", kEvents), ": alive\n\n"), {.reply_bytes = 10'000})
                .error()
                .code,
            Code::kTooLarge);
  EXPECT_FALSE(stream_of(OneReply(head("400 Bad Request", ""), more)));
  const OneReply models(head("200 OK", ""), more);
  const auto fetched = HttpClient({.fetched_bytes = 100'000}).fetch({.url = models.url()});
  ASSERT_FALSE(fetched);
  EXPECT_EQ(fetched.error().code, Code::kTooLarge);
}

TEST(HttpClient, SilenceEnds) {
  EXPECT_FALSE(stream_of(OneReply("", "", true), {.silence = std::chrono::seconds(1)}));
  EXPECT_FALSE(
      stream_of(OneReply(head("200 OK", kEvents), "", true), {.silence = std::chrono::seconds(1)}));
}

TEST(HttpClient, AnAddressHasAHostAndNoPassword) {
  for (const std::string_view good :
       {"http://127.0.0.1:8000", "https://host/a@b", "http://[::1]:1/"}) {
    EXPECT_TRUE(check_server_url(good, "x")) << good;
  }
  for (const std::string_view bad : {"", "host:1", "ftp://host", "http://", "http://host:port",
                                     "http://ann@host", "https://ann:pw@host", "http://:pw@host"}) {
    const auto checked = check_server_url(bad, "server.otlp");
    ASSERT_FALSE(checked) << bad;
    EXPECT_EQ(checked.error().code, Code::kInvalidArgument);
    EXPECT_EQ(checked.error().where, "server.otlp");
    EXPECT_EQ(checked.error().what.find("pw"), std::string::npos);
  }
}

}  // namespace
}  // namespace galley::gateway
