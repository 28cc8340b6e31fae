#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string_view>

#include "base/log.h"
#include "base/metrics.h"
#include "gateway/exchange.h"
#include "gateway/generation_reply.h"

namespace galley::gateway {

// Every path of the server. Answers the small routes itself and hands generations to
// GenerationReply. All members are called on the connections' thread, except set_draining.
class Routes final : public HttpHandler {
 public:
  // The references, and those in `context`, must outlive the routes.
  Routes(ReplyContext context, Metrics& metrics, Log& log);

  std::optional<HttpResponse> refuse_early(const HttpRequest& head) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  HttpResponse connection_error(int status,
                                std::string_view message,
                                std::string_view path) override;
  void finished(const ExchangeSummary& summary) override;
  void connection_count_changed(std::size_t count) override;

  // From now on /ready says no and new generations are refused with 503, before their body is sent.
  // From any thread. Clients see it while the server still accepts, which its owner must let it.
  void set_draining() { draining_ = true; }

 private:
  void generate(recipe::Protocol protocol, const std::shared_ptr<Exchange>& exchange);
  [[nodiscard]] HttpResponse models(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse model(const HttpRequest& request, std::string_view encoded_id) const;
  [[nodiscard]] HttpResponse ready() const;
  [[nodiscard]] HttpResponse error(const HttpRequest& request, const Error& error) const;

  const ReplyContext context_;
  Metrics& metrics_;
  Log& log_;
  Gauge open_connections_;
  const std::int64_t started_s_;  // `created` of every model
  std::atomic<bool> draining_ = false;
};

}  // namespace galley::gateway
