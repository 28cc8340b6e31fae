#pragma once

#include <arpa/inet.h>
#include <atomic>
#include <cstdlib>
#include <deque>
#include <fmt/core.h>
#include <functional>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <set>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/task_pool.h"

namespace galley::gateway {

// An engine's server that does what the test says with each question for tokens, one after the
// other; the last of the scripts also answers all that come later. /health has a status of its own.
class FakeEngine {
 public:
  class Peer {
   public:
    explicit Peer(int fd) : fd_(fd) {}
    // False when the client has gone.
    bool send(std::string_view bytes) const {
      while (!bytes.empty()) {
        const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent <= 0) {
          return false;
        }
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      }
      return true;
    }
    bool begin_stream() const {
      return send(
          "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
    }
    bool event(std::string_view data) const { return send(fmt::format("data: {}\n\n", data)); }
    bool refuse(int status, std::string_view body) const {
      return send(
          fmt::format("HTTP/1.1 {} No\r\ncontent-type: application/json\r\n"
                      "content-length: {}\r\nconnection: close\r\n\r\n{}",
                      status, body.size(), body));
    }
    // Returns once the client has gone.
    void wait_gone() const {
      char byte{};
      while (::recv(fd_, &byte, 1, 0) > 0) {
      }
    }

   private:
    int fd_;
  };
  using Script = std::function<void(const Peer&)>;

  explicit FakeEngine(std::vector<Script> scripts) : scripts_(scripts.begin(), scripts.end()) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const plain = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::bind(listener_, plain, size), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, plain, &size), 0);
    url_ = fmt::format("http://127.0.0.1:{}", ntohs(address.sin_port));
    EXPECT_TRUE(acceptor_.try_post([this] { accept(); }));
  }
  ~FakeEngine() {
    ::shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const MutexLock lock(mutex_);
      for (const int peer : open_) {
        ::shutdown(peer, SHUT_RDWR);
      }
    }
    servers_.join();
    ::close(listener_);
  }
  FakeEngine(const FakeEngine&) = delete;
  FakeEngine& operator=(const FakeEngine&) = delete;

  [[nodiscard]] const std::string& url() const { return url_; }
  // Heads and bodies of the questions for tokens.
  [[nodiscard]] std::vector<std::string> questions() {
    const MutexLock lock(mutex_);
    return questions_;
  }
  // Questions whose script has ended.
  [[nodiscard]] int ended() const { return ended_; }

  std::atomic<int> health = 200;

 private:
  void accept() {
    for (int peer = 0; (peer = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0;) {
      const MutexLock lock(mutex_);
      open_.insert(peer);
      EXPECT_TRUE(servers_.try_post([this, peer] { serve(peer); }));
    }
  }
  void serve(int fd) {
    const Peer peer(fd);
    if (const std::string question = read(fd); question.starts_with("GET /health ")) {
      peer.refuse(health, "{}");
    } else if (!question.empty()) {
      next_script(question)(peer);
      ++ended_;
    }
    const MutexLock lock(mutex_);
    open_.erase(fd);
    ::close(fd);
  }
  static std::string read(int fd) {
    constexpr std::string_view kLength = "content-length: ";
    std::string text;
    for (std::size_t whole = std::string::npos; text.size() < whole;) {
      char part[4096];
      const ssize_t got = ::recv(fd, part, sizeof part, 0);
      if (got <= 0) {
        return {};
      }
      text.append(part, static_cast<std::size_t>(got));
      if (const std::size_t end = text.find("\r\n\r\n"); end != std::string::npos) {
        std::string head = text.substr(0, end);
        for (char& c : head) {
          c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
        }
        const std::size_t at = head.find(kLength);
        whole = end + 4 +
                (at == std::string::npos
                     ? 0
                     : std::strtoul(head.c_str() + at + kLength.size(), nullptr, 10));
      }
    }
    return text;
  }
  Script next_script(const std::string& question) {
    const MutexLock lock(mutex_);
    questions_.push_back(question);
    Script script = scripts_.front();
    if (scripts_.size() > 1) {
      scripts_.pop_front();
    }
    return script;
  }

  int listener_ = -1;
  std::string url_;
  std::atomic<int> ended_ = 0;
  Mutex mutex_;
  std::deque<Script> scripts_ GALLEY_GUARDED_BY(mutex_);
  std::vector<std::string> questions_ GALLEY_GUARDED_BY(mutex_);
  std::set<int> open_ GALLEY_GUARDED_BY(mutex_);
  TaskPool servers_{8, 64};
  TaskPool acceptor_{1, 1};
};

}  // namespace galley::gateway
