#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "gateway/connection_context.h"
#include "gateway/exchange.h"
#include "gateway/timed_io.h"

namespace galley::gateway {

// An exchange on a connection. Shared by the connection, which sends what is here as it comes, and
// by whoever still computes the answer.
class HttpExchange final : public Exchange {
 public:
  HttpExchange(ConnectionContext& context, HttpRequest request);

  HttpRequest& request() override { return request_; }
  void respond(HttpResponse response) override;
  void start_stream(HttpResponse head) override;
  void write(std::string_view bytes) override;
  [[nodiscard]] std::size_t unsent_bytes() const override { return out_.size() + sending_bytes_; }
  void end_stream() override;
  void note_token() override;
  void abort() override;
  [[nodiscard]] bool gone() const override { return gone_; }
  void listen(std::shared_ptr<ExchangeListener> listener) override;
  void post(std::move_only_function<void()> task) override;
  bool offload(std::move_only_function<void()> task) override;

  // The rest is the connection's.

  // The head of the answer is there.
  [[nodiscard]] bool started() const { return started_; }
  [[nodiscard]] bool streaming() const { return streaming_; }
  // Nothing comes behind what can be taken.
  [[nodiscard]] bool ended() const { return ended_; }
  [[nodiscard]] bool aborted() const { return aborted_; }
  [[nodiscard]] const HttpResponse& head() const { return head_; }
  [[nodiscard]] std::size_t waiting_bytes() const { return out_.size(); }
  // The body bytes that wait; they count as unsent until sent().
  [[nodiscard]] std::string take();
  void sent();
  // Another call of the answering side wakes this.
  [[nodiscard]] Wakeup& changed() { return changed_; }
  void keep_alive();
  // The server ends: whoever answers is told so now, or when it begins to listen.
  void stop();
  // The exchange is over. Breaks the ring between an exchange and the listener that owns it.
  void close(bool complete);

 private:
  ConnectionContext& context_;
  HttpRequest request_;
  const TimeNs begun_;
  std::optional<Duration> first_token_;
  HttpResponse head_;
  std::string out_;  // body bytes that wait for the connection
  std::size_t sending_bytes_ = 0;
  bool started_ = false;
  bool streaming_ = false;
  bool ended_ = false;
  bool aborted_ = false;
  std::atomic<bool> gone_ = false;
  std::shared_ptr<ExchangeListener> listener_;  // owners: this exchange, tasks it posted
  Wakeup changed_;
};

}  // namespace galley::gateway
