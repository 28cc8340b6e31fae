#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/metrics.h"
#include "gateway/api_keys.h"
#include "gateway/exchange.h"
#include "gateway/file_routes.h"
#include "gateway/generation_reply.h"
#include "gateway/key_quota.h"
#include "gateway/span_exporter.h"

namespace galley::gateway {

// A file that is served as it is.
struct Page {
  std::string_view path;  // "/app.js"
  std::string_view content_type;
  std::string_view bytes;
};

// A path as it is described: {name} stands for a part of it.
struct KnownRoute {
  std::string_view method;
  std::string path;
};
// Every route, once, under its usual prefix.
[[nodiscard]] std::vector<KnownRoute> known_routes();

struct RouteOptions {
  std::vector<Page> pages;       // for everybody
  std::string_view description;  // OpenAPI's, of all routes; for everybody
  ApiKeys keys;                  // who may use the rest, but for /health and /ready
  // Files and batches; must outlive the routes. Null: not offered.
  FileDesk* files = nullptr;
  // Takes the span of each request that is not told to leave none. Empty: there is no tracing.
  std::function<void(Span)> on_span;
};

// Every path of the server. Answers the small routes itself and hands generations to
// GenerationReply. All members are called on the connections' thread, except set_draining.
class Routes final : public HttpHandler {
 public:
  // The references, those in `context`, and what the pages point to must outlive the routes.
  Routes(ReplyContext context, Metrics& metrics, Log& log, RouteOptions options = {});

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
  // The same for a body that was moved out; `place` is the tenant's, null where nobody counts.
  struct Start;
  void prepare(Start start, std::optional<recipe::JsonArray> earlier);
  void look_up(Start start, std::string response_id);
  // Of the key a client sent; null where keys are wanted and it is missing or wrong, and where none
  // are.
  [[nodiscard]] const ApiKey* key_of(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse unauthenticated(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse models(const HttpRequest& request) const;
  [[nodiscard]] HttpResponse model(const HttpRequest& request, std::string_view encoded_id) const;
  [[nodiscard]] HttpResponse ready() const;
  [[nodiscard]] HttpResponse error(const HttpRequest& request, const Error& error) const;

  [[nodiscard]] const Page* find_page(std::string_view path) const;

  [[nodiscard]] std::string tenant_of(const HttpRequest& request) const;

  const ReplyContext context_;
  const RouteOptions options_;
  KeyQuota quota_;
  Metrics& metrics_;
  Log& log_;
  Gauge open_connections_;
  Histogram first_token_seconds_;
  const std::int64_t started_s_;  // `created` of every model
  std::atomic<bool> draining_ = false;
};

}  // namespace galley::gateway
