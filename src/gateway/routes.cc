#include "gateway/routes.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <fmt/core.h>
#include <string>
#include <utility>

#include "base/hex.h"
#include "base/quote.h"
#include "gateway/http_text.h"
#include "gateway/response_routes.h"
#include "gateway/token_bodies.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

// Upper bounds of the buckets: small routes take less than a millisecond, long replies minutes.
constexpr std::array kRequestSeconds{0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0};
// From little more than a prompt that the cache has to one that takes minutes.
constexpr std::array kFirstTokenSeconds{0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0};
constexpr std::size_t kShownBytesMax = 128;  // of what a client sent, in an error that repeats it

using recipe::Compat;
using recipe::Json;
using recipe::JsonArray;
using recipe::JsonObject;
using recipe::Protocol;

enum class Action : std::uint8_t {
  kGenerate,
  kCountTokens,
  kTokenize,
  kDetokenize,
  kModels,
  kModel,
  kResponse,
  kDeleteResponse,
  kResponseItems,
  kCancelResponse,
  kUploadFile,
  kListFiles,
  kFile,
  kFileContent,
  kDeleteFile,
  kCreateBatch,
  kListBatches,
  kBatch,
  kCancelBatch,
  kHealth,
  kReady,
  kMetrics,
  kDescription,
  kNotBuilt
};

// Where the hosted service serves a path besides /v1 (spec recipe 6.0).
enum class Prefixes : std::uint8_t {
  kNone,       // as written
  kV1,         // with and without /v1
  kV1Beta,     // also under /beta
  kAnthropic,  // /v1, /anthropic/v1 and /anthropic
};

struct Route {
  std::string_view method;
  std::string_view path;  // {name} stands for one part that is not empty, {name*} for all the rest
  Prefixes prefixes{};
  Action action{};
  Protocol protocol = Protocol::kChat;  // of the body, and of the errors about it
};

constexpr std::array kRoutes{
    Route{"POST", "/chat/completions", Prefixes::kV1Beta, Action::kGenerate},
    Route{"POST", "/completions", Prefixes::kV1Beta, Action::kGenerate, Protocol::kCompletions},
    Route{"POST", "/responses", Prefixes::kV1, Action::kGenerate, Protocol::kResponses},
    Route{"POST", "/messages", Prefixes::kAnthropic, Action::kGenerate, Protocol::kMessages},
    Route{"POST", "/messages/count_tokens", Prefixes::kAnthropic, Action::kCountTokens,
          Protocol::kMessages},
    Route{"POST", "/tokenize", Prefixes::kV1, Action::kTokenize},
    Route{"POST", "/detokenize", Prefixes::kV1, Action::kDetokenize},
    Route{"GET", "/models", Prefixes::kV1, Action::kModels},
    Route{"GET", "/models/{model*}", Prefixes::kV1, Action::kModel},
    Route{"GET", "/models", Prefixes::kAnthropic, Action::kModels},
    Route{"GET", "/models/{model*}", Prefixes::kAnthropic, Action::kModel},
    Route{"GET", "/responses/{response_id}", Prefixes::kV1, Action::kResponse},
    Route{"DELETE", "/responses/{response_id}", Prefixes::kV1, Action::kDeleteResponse},
    Route{"GET", "/responses/{response_id}/input_items", Prefixes::kV1, Action::kResponseItems},
    Route{"POST", "/responses/{response_id}/cancel", Prefixes::kV1, Action::kCancelResponse},
    Route{"GET", "/files", Prefixes::kV1, Action::kListFiles},
    Route{"POST", "/files", Prefixes::kV1, Action::kUploadFile},
    Route{"GET", "/files/{file_id}", Prefixes::kV1, Action::kFile},
    Route{"GET", "/files/{file_id}/content", Prefixes::kV1, Action::kFileContent},
    Route{"DELETE", "/files/{file_id}", Prefixes::kV1, Action::kDeleteFile},
    Route{"GET", "/batches", Prefixes::kV1, Action::kListBatches},
    Route{"POST", "/batches", Prefixes::kV1, Action::kCreateBatch},
    Route{"GET", "/batches/{batch_id}", Prefixes::kV1, Action::kBatch},
    Route{"POST", "/batches/{batch_id}/cancel", Prefixes::kV1, Action::kCancelBatch},
    Route{"GET", "/health", Prefixes::kNone, Action::kHealth},
    Route{"GET", "/ready", Prefixes::kNone, Action::kReady},
    Route{"GET", "/metrics", Prefixes::kNone, Action::kMetrics},
    Route{"GET", "/openapi.json", Prefixes::kNone, Action::kDescription},
    // Known to clients, not built.
    Route{"POST", "/embeddings", Prefixes::kV1, Action::kNotBuilt},
    Route{"POST", "/tools/search", Prefixes::kV1, Action::kNotBuilt},
    Route{"POST", "/tools/fetch", Prefixes::kV1, Action::kNotBuilt},
    Route{"GET", "/user/balance", Prefixes::kNone, Action::kNotBuilt},
};

// `path` without `prefix`, when something that starts with '/' is left.
std::optional<std::string_view> without(std::string_view prefix, std::string_view path) {
  if (path.size() > prefix.size() && path.starts_with(prefix) && path[prefix.size()] == '/') {
    return path.substr(prefix.size());
  }
  return std::nullopt;
}

// The ways to read `path` as a path of the table under `prefixes`.
std::array<std::optional<std::string_view>, 3> bare(Prefixes prefixes, std::string_view path) {
  switch (prefixes) {
    case Prefixes::kNone:
      return {path};
    case Prefixes::kV1:
      return {path, without("/v1", path)};
    case Prefixes::kV1Beta:
      return {path, without("/v1", path), without("/beta", path)};
    case Prefixes::kAnthropic:
      return {without("/v1", path), without("/anthropic/v1", path), without("/anthropic", path)};
  }
  std::unreachable();
}

// What stands for the {name} of `pattern` in `path`: empty where it has none. Nothing when the two
// do not match.
std::optional<std::string_view> match(std::string_view pattern, std::string_view path) {
  const std::size_t open = pattern.find('{');
  if (open == std::string_view::npos) {
    return pattern == path ? std::optional(std::string_view()) : std::nullopt;
  }
  const std::size_t close = pattern.find('}');
  const bool takes_all = pattern[close - 1] == '*';
  const std::string_view tail = pattern.substr(close + 1);
  if (!path.starts_with(pattern.substr(0, open)) || !path.ends_with(tail) ||
      path.size() <= open + tail.size()) {
    return std::nullopt;
  }
  const std::string_view value = path.substr(open, path.size() - open - tail.size());
  return takes_all || value.find('/') == std::string_view::npos ? std::optional(value)
                                                                : std::nullopt;
}

std::optional<std::string_view> match(const Route& route, std::string_view path) {
  for (const auto& candidate : bare(route.prefixes, path)) {
    if (candidate) {
      if (const auto value = match(route.path, *candidate)) {
        return value;
      }
    }
  }
  return std::nullopt;
}

bool is_get(std::string_view method) {
  return method == "GET" || method == "HEAD";
}

struct Found {
  const Route* route = nullptr;
  std::string_view rest;  // what stands for the path's {name}
  std::string allow;      // methods of the path; empty: there is no such path
};

Found find_route(std::string_view method, std::string_view path) {
  Found found;
  const std::string_view asked = is_get(method) ? "GET" : method;
  for (const Route& route : kRoutes) {
    const auto rest = match(route, path);
    if (!rest) {
      continue;
    }
    if (route.method == asked && found.route == nullptr) {
      found.route = &route;
      found.rest = *rest;
    }
    if (found.allow.find(route.method) == std::string::npos) {
      found.allow.append(found.allow.empty() ? "" : ", ").append(route.method);
      if (route.method == "GET") {
        found.allow += ", HEAD";
      }
    }
  }
  return found;
}

// As a description spells it: {model*} is {model}.
std::string described(std::string_view path) {
  std::string out(path);
  std::erase(out, '*');
  return out;
}

// Whose error object a client expects: Anthropic's on Messages paths and from its SDKs.
Protocol protocol_of(std::string_view path) {
  const bool anthropic = path.starts_with("/anthropic/") || path.starts_with("/v1/messages");
  return anthropic ? Protocol::kMessages : Protocol::kChat;
}

bool asks_as_anthropic(const HttpRequest& request) {
  return request.header("anthropic-version") != nullptr ||
         protocol_of(request.path) == Protocol::kMessages;
}

// Answers about what lies in a store, once its disk has.
using ResponseAction = void (*)(ResponseRoute, const std::shared_ptr<Exchange>&);
ResponseAction response_action(Action action) {
  switch (action) {
    case Action::kResponse:
      return get_response;
    case Action::kDeleteResponse:
      return delete_response;
    case Action::kResponseItems:
      return get_response_items;
    case Action::kCancelResponse:
      return cancel_response;
    default:
      return nullptr;
  }
}

using FileAction = void (*)(FileRoute, const std::shared_ptr<Exchange>&);
FileAction file_action(Action action) {
  switch (action) {
    case Action::kUploadFile:
      return upload_file;
    case Action::kListFiles:
      return list_files;
    case Action::kFile:
      return get_file;
    case Action::kFileContent:
      return get_file_content;
    case Action::kDeleteFile:
      return delete_file;
    case Action::kCreateBatch:
      return create_batch;
    case Action::kListBatches:
      return list_batches;
    case Action::kBatch:
      return get_batch;
    case Action::kCancelBatch:
      return cancel_batch;
    default:
      return nullptr;
  }
}

bool needs_key(Action action) {
  return action != Action::kHealth && action != Action::kReady && action != Action::kDescription;
}

// Of the request's trace, "none" when it belongs to none that is spelled right.
std::string_view trace_id(const HttpRequest& request) {
  const std::string* const parent = request.header("traceparent");
  return parent != nullptr && is_traceparent(*parent) ? std::string_view(*parent).substr(3, 32)
                                                      : std::string_view("none");
}

// Nothing: whoever began the trace records none of it.
std::optional<Span> span_of(const ExchangeSummary& summary,
                            const std::string& route,
                            UnixTime now) {
  const HttpRequest& request = summary.request;
  Span span{.name = request.method + " " + route,
            .begun = now - summary.took,
            .ended = now,
            .failed = summary.status >= 500 || !summary.complete,
            .attributes = {{"http.request.method", request.method},
                           {"http.route", route},
                           {"http.response.status_code", std::int64_t{summary.status}},
                           {"galley.request_id", request.id},
                           {"galley.complete", summary.complete}}};
  if (summary.first_token) {
    span.first_token = span.begun + *summary.first_token;
  }
  const std::string* const parent = request.header("traceparent");
  if (parent != nullptr && is_traceparent(*parent)) {
    if ((hex_digit((*parent)[54]) & 1) == 0) {
      return std::nullopt;
    }
    span.trace_id = parent->substr(3, 32);
    span.parent_id = parent->substr(36, 16);
  }
  return span;
}

// Empty when none was sent.
std::string_view presented_key(const HttpRequest& request) {
  constexpr std::string_view kScheme = "bearer ";
  if (const std::string* const value = request.header("authorization")) {
    const std::string_view text = *value;
    if (same_ignoring_case(text.substr(0, kScheme.size()), kScheme)) {
      return text.substr(kScheme.size());
    }
  }
  const std::string* const key = request.header("x-api-key");
  return key == nullptr ? std::string_view() : std::string_view(*key);
}

HttpResponse json_response(int status, const Json& body) {
  return {
      .status = status, .headers = {{"content-type", "application/json"}}, .body = to_json(body)};
}

// The page talks to its own server and to nobody else.
constexpr std::string_view kPagePolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

HttpResponse page_response(const Page& page) {
  return {.headers = {{"content-type", std::string(page.content_type)},
                      {"content-security-policy", std::string(kPagePolicy)},
                      {"x-content-type-options", "nosniff"},
                      {"cache-control", "no-cache"}},
          .body = std::string(page.bytes)};
}

Json openai_model(const std::string& id, std::int64_t created_s) {
  return JsonObject{
      {"id", id}, {"object", "model"}, {"created", created_s}, {"owned_by", "deepseek"}};
}

Json anthropic_model(const std::string& id, std::int64_t created_s) {
  return JsonObject{
      {"type", "model"}, {"id", id}, {"display_name", id}, {"created_at", rfc3339(created_s)}};
}

Code code_of(int status) {
  switch (status) {
    case 413:
      return Code::kTooLarge;
    case 501:
      return Code::kUnimplemented;
    case 503:
      return Code::kUnavailable;
    default:
      return Code::kInvalidArgument;
  }
}

// Too much for the limits of a key, with the time after which it is worth trying again.
HttpResponse refusal(Protocol protocol, Compat compat, const KeyQuota::Refusal& refused) {
  HttpResponse response = error_response(protocol, compat, refused.error);
  if (refused.retry_after == Duration(0)) {
    return response;
  }
  const auto wait = std::chrono::ceil<std::chrono::seconds>(refused.retry_after);
  std::erase_if(response.headers,
                [](const HttpHeader& header) { return header.name == "retry-after"; });
  response.headers.push_back({"retry-after", std::to_string(wait.count())});
  return response;
}

// Hands the body to `read` on a codec thread, and what that makes to `answer` back here; an error
// of `read` is the reply.
template <typename Read, typename Answer>
void with_body(const ReplyContext& context,
               Protocol protocol,
               const std::shared_ptr<Exchange>& exchange,
               Read read,
               Answer answer) {
  const Compat compat = context.codec.options().compat;
  HttpBody body = std::move(exchange->request().body);
  const bool queued =
      exchange->offload([protocol, compat, exchange, body = std::move(body), read = std::move(read),
                         answer = std::move(answer)]() mutable {
        if (exchange->gone()) {
          return;
        }
        // A temporary: nothing reads the body after this line, its place is the next one's.
        auto made = read(HttpBody(std::move(body)));
        exchange->post([protocol, compat, exchange, answer = std::move(answer),
                        made = std::move(made)]() mutable {
          if (!made) {
            exchange->respond(error_response(protocol, compat, made.error()));
            return;
          }
          answer(std::move(*made));
        });
      });
  if (!queued) {
    exchange->respond(error_response(
        protocol, compat,
        {.code = Code::kOverloaded, .what = "Too many requests are waiting. Retry later."}));
  }
}

// The same where `read` makes the JSON text of the reply.
template <typename Read>
void answer_body(const ReplyContext& context,
                 Protocol protocol,
                 const std::shared_ptr<Exchange>& exchange,
                 Read read) {
  with_body(
      context, protocol, exchange,
      [read = std::move(read)](const HttpBody& body) { return read(body.text); },
      [exchange](std::string text) {
        exchange->respond(
            {.headers = {{"content-type", "application/json"}}, .body = std::move(text)});
      });
}

}  // namespace

std::vector<KnownRoute> known_routes() {
  std::vector<KnownRoute> out;
  for (const Route& route : kRoutes) {
    KnownRoute known{route.method,
                     (route.prefixes == Prefixes::kNone ? "" : "/v1") + described(route.path)};
    const auto same = [&](const KnownRoute& other) {
      return other.method == known.method && other.path == known.path;
    };
    if (std::ranges::none_of(out, same)) {
      out.push_back(std::move(known));
    }
  }
  return out;
}

Routes::Routes(ReplyContext context, Metrics& metrics, Log& log, RouteOptions options)
    : context_(context),
      options_(std::move(options)),
      quota_(context.clock),
      metrics_(metrics),
      log_(log),
      open_connections_(metrics.gauge("galley_open_connections", "Connections that are open.")),
      first_token_seconds_(
          metrics.histogram("galley_first_token_seconds",
                            "From the complete request to the first token of its answer.",
                            kFirstTokenSeconds)),
      started_s_(context.clock.unix_seconds()) {}

const Page* Routes::find_page(std::string_view path) const {
  const auto found = std::ranges::find(options_.pages, path, &Page::path);
  return found == options_.pages.end() ? nullptr : &*found;
}

const ApiKey* Routes::key_of(const HttpRequest& request) const {
  const std::string_view presented = presented_key(request);
  return presented.empty() ? nullptr : options_.keys.find(presented);
}

HttpResponse Routes::unauthenticated(const HttpRequest& request) const {
  HttpResponse response =
      error(request, {.code = Code::kUnauthenticated,
                      .what = presented_key(request).empty()
                                  ? "An API key is needed, as `authorization: Bearer KEY` or "
                                    "`x-api-key: KEY`."
                                  : "The API key is not known here."});
  response.headers.push_back({"www-authenticate", "Bearer"});
  return response;
}

std::optional<HttpResponse> Routes::refuse_early(const HttpRequest& head) {
  Found found = find_route(head.method, head.path);
  if (find_page(head.path) != nullptr) {
    if (is_get(head.method)) {
      return std::nullopt;
    }
    found.allow = "GET, HEAD";
  }
  if (found.allow.empty()) {
    return error(head,
                 {.code = Code::kNotFound,
                  .what = fmt::format("There is no route {}.", quoted(head.path, kShownBytesMax))});
  }
  if (found.route == nullptr) {
    HttpResponse response = error(
        head, {.code = Code::kInvalidArgument,
               .what = fmt::format("{} does not take {}, only {}.",
                                   quoted(head.path, kShownBytesMax), head.method, found.allow)});
    response.status = 405;
    response.headers.push_back({"allow", found.allow});
    return response;
  }
  const ApiKey* const key = key_of(head);
  if (needs_key(found.route->action) && !options_.keys.empty() && key == nullptr) {
    return unauthenticated(head);
  }
  if (file_action(found.route->action) != nullptr && options_.files == nullptr) {
    return error(head, {.code = Code::kUnimplemented,
                        .what = fmt::format("{} {} is not offered: the operator has to "
                                            "give this server a folder with `server.data`.",
                                            head.method, quoted(head.path, kShownBytesMax))});
  }
  if (found.route->action == Action::kNotBuilt ||
      (response_action(found.route->action) != nullptr && context_.responses == nullptr)) {
    return error(head, {.code = Code::kUnimplemented,
                        .what = fmt::format("{} {} is not implemented by this server.", head.method,
                                            quoted(head.path, kShownBytesMax))});
  }
  if (found.route->action == Action::kGenerate && draining_) {
    return error(head,
                 {.code = Code::kUnavailable, .what = "The server is about to stop. Retry later."});
  }
  if (found.route->action == Action::kGenerate && key != nullptr) {
    if (const auto refused = quota_.refuses(*key)) {
      return refusal(found.route->protocol, context_.codec.options().compat, *refused);
    }
  }
  return std::nullopt;
}

void Routes::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  if (const Page* const page = find_page(request.path)) {
    return exchange->respond(page_response(*page));
  }
  const Found found = find_route(request.method, request.path);
  const std::string id = percent_decoded(found.rest).value_or(std::string(found.rest));
  if (const auto act = response_action(found.route->action)) {
    return act({.desk = *context_.responses,
                .compat = context_.codec.options().compat,
                .tenant = tenant_of(request),
                .id = id},
               exchange);
  }
  if (const auto act = file_action(found.route->action)) {
    return act({.desk = *options_.files, .tenant = tenant_of(request), .id = id}, exchange);
  }
  switch (found.route->action) {
    case Action::kGenerate:
      return generate(found.route->protocol, exchange);
    case Action::kCountTokens:
      return answer_body(
          context_, found.route->protocol, exchange,
          [&codec = context_.codec](std::string_view body) { return count_tokens(codec, body); });
    case Action::kTokenize:
      return answer_body(
          context_, found.route->protocol, exchange,
          [&codec = context_.codec](std::string_view body) { return tokenize(codec, body); });
    case Action::kDetokenize:
      return answer_body(
          context_, found.route->protocol, exchange,
          [&codec = context_.codec](std::string_view body) { return detokenize(codec, body); });
    case Action::kModels:
      return exchange->respond(models(request));
    case Action::kModel:
      return exchange->respond(model(request, found.rest));
    case Action::kHealth:
      return exchange->respond(json_response(200, JsonObject{{"status", "ok"}}));
    case Action::kReady:
      return exchange->respond(ready());
    case Action::kMetrics:
      return exchange->respond(
          {.headers = {{"content-type", "text/plain; version=0.0.4"}}, .body = metrics_.render()});
    case Action::kDescription:
      return exchange->respond({.headers = {{"content-type", "application/json"}},
                                .body = std::string(options_.description)});
    default:
      break;  // answered above, or by refuse_early()
  }
  std::unreachable();
}

std::string Routes::tenant_of(const HttpRequest& request) const {
  const ApiKey* const key = key_of(request);
  return key == nullptr ? std::string() : key->name;
}

// A generation on its way from bytes to tokens.
struct Routes::Start {
  Protocol protocol{};
  std::shared_ptr<Exchange> exchange;
  std::string tenant;
  std::unique_ptr<KeyQuota::Place> place;
};

void Routes::generate(Protocol protocol, const std::shared_ptr<Exchange>& exchange) {
  Start start{.protocol = protocol, .exchange = exchange, .tenant = {}, .place = nullptr};
  if (const ApiKey* const key = key_of(exchange->request())) {
    auto entered = quota_.enter(*key);
    if (!entered) {
      return exchange->respond(refusal(protocol, context_.codec.options().compat, entered.error()));
    }
    start.place = std::move(*entered);
    start.tenant = key->name;
  }
  // The reference does not know earlier Responses.
  if (protocol == Protocol::kResponses && context_.responses != nullptr &&
      context_.codec.options().compat == Compat::kGalley) {
    // The store is asked between two looks at the body: a codec thread does not wait for a disk.
    struct Named {
      HttpBody body;
      std::optional<std::string> id;
    };
    return with_body(
        context_, protocol, exchange,
        [](HttpBody body) -> Result<Named> {
          auto id = recipe::named_response(body.text);
          return Named{std::move(body), std::move(id)};
        },
        [this, start = std::move(start)](Named named) mutable {
          start.exchange->request().body = std::move(named.body);
          if (named.id) {
            return look_up(std::move(start), std::move(*named.id));
          }
          prepare(std::move(start), std::nullopt);
        });
  }
  prepare(std::move(start), std::nullopt);
}

void Routes::look_up(Start start, std::string response_id) {
  const Compat compat = context_.codec.options().compat;
  const std::shared_ptr<Exchange> exchange = start.exchange;
  const bool posted = context_.responses->post([this, compat, id = std::move(response_id),
                                                start = std::move(start)](
                                                   ResponseStore& store) mutable {
    if (start.exchange->gone()) {
      return;
    }
    auto earlier = earlier_items(store, start.tenant, id);
    const std::shared_ptr<Exchange> asking = start.exchange;
    asking->post([this, compat, start = std::move(start), earlier = std::move(earlier)]() mutable {
      if (!earlier) {
        start.exchange->respond(error_response(start.protocol, compat, earlier.error()));
        return;
      }
      prepare(std::move(start), std::move(*earlier));
    });
  });
  if (!posted) {
    exchange->respond(error_response(
        Protocol::kResponses, compat,
        {.code = Code::kOverloaded, .what = "Too many requests wait for the disk. Retry later."}));
  }
}

void Routes::prepare(Start start, std::optional<recipe::JsonArray> earlier) {
  const Protocol protocol = start.protocol;
  const std::shared_ptr<Exchange> exchange = start.exchange;
  with_body(
      context_, protocol, exchange,
      [this, protocol, tenant = std::move(start.tenant),
       earlier = std::move(earlier)](const HttpBody& body) mutable -> Result<Prepared> {
        GALLEY_TRY(Prepared prepared,
                   context_.codec.prepare(protocol, body.text, std::move(earlier)));
        prepared.generation.tenant = tenant;
        GALLEY_CHECK_OK(fit(prepared, context_.source));
        return prepared;
      },
      [this, exchange, place = std::move(start.place)](Prepared prepared) mutable {
        if (place != nullptr) {
          if (const auto refused = place->widen(prepared.request.sampling.n)) {
            return exchange->respond(
                refusal(prepared.request.protocol, context_.codec.options().compat, *refused));
          }
        }
        const HttpRequest& request = exchange->request();
        prepared.generation.request_id = request.id;
        if (trace_id(request) != "none") {
          prepared.generation.traceparent = *request.header("traceparent");
        }
        GenerationReply::begin(exchange, std::move(prepared), context_, std::move(place));
      });
}

HttpResponse Routes::models(const HttpRequest& request) const {
  const bool anthropic = asks_as_anthropic(request);
  JsonArray data;
  for (const auto& [id, version] : context_.codec.options().models) {
    data.push_back(anthropic ? anthropic_model(id, started_s_) : openai_model(id, started_s_));
  }
  if (!anthropic) {
    return json_response(200, JsonObject{{"object", "list"}, {"data", std::move(data)}});
  }
  const Json first = data.empty() ? Json{} : *data.front().find("id");
  const Json last = data.empty() ? Json{} : *data.back().find("id");
  return json_response(
      200,
      JsonObject{
          {"data", std::move(data)}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
}

HttpResponse Routes::model(const HttpRequest& request, std::string_view encoded_id) const {
  const std::string id = percent_decoded(encoded_id).value_or(std::string(encoded_id));
  if (!context_.codec.options().models.contains(id)) {
    return error(request,
                 {.code = Code::kNotFound,
                  .what = fmt::format("There is no model {}.", quoted(id, kShownBytesMax))});
  }
  return json_response(200, asks_as_anthropic(request) ? anthropic_model(id, started_s_)
                                                       : openai_model(id, started_s_));
}

HttpResponse Routes::ready() const {
  if (draining_) {
    return json_response(503, JsonObject{{"status", "draining"}});
  }
  if (!context_.source.ready()) {
    return json_response(503, JsonObject{{"status", "loading"}});
  }
  return json_response(200, JsonObject{{"status", "ready"}});
}

HttpResponse Routes::error(const HttpRequest& request, const Error& error) const {
  return error_response(asks_as_anthropic(request) ? Protocol::kMessages : Protocol::kChat,
                        context_.codec.options().compat, error);
}

void Routes::finished(const ExchangeSummary& summary) {
  const HttpRequest& request = summary.request;
  const Found found = find_route(request.method, request.path);
  const std::string status = std::to_string(summary.status);
  // The table's spelling, so that a client cannot make up series.
  const std::string route = found.route != nullptr               ? described(found.route->path)
                            : find_page(request.path) != nullptr ? "page"
                                                                 : "none";
  metrics_
      .counter("galley_http_requests_total", "Requests by route and status, 0: client left first.",
               {{"route", route}, {"status", status}})
      .add();
  metrics_
      .histogram("galley_http_request_seconds",
                 "From the complete request to the end of its reply.", kRequestSeconds,
                 {{"route", route}})
      .observe(std::chrono::duration<double>(summary.took).count());
  if (summary.first_token) {
    first_token_seconds_.observe(std::chrono::duration<double>(*summary.first_token).count());
  }
  if (options_.on_span) {
    if (auto span = span_of(summary, route, context_.clock.unix_time())) {
      options_.on_span(*std::move(span));
    }
  }
  const ApiKey* const key = key_of(request);
  log_.info("request done", {{"request", request.id},
                             {"method", request.method},
                             {"path", request.path},
                             {"status", summary.status},
                             {"complete", summary.complete},
                             {"took", to_string(summary.took)},
                             {"key", key == nullptr ? "none" : key->name},
                             {"trace", trace_id(request)}});
}

void Routes::connection_count_changed(std::size_t count) {
  open_connections_.set(static_cast<double>(count));
}

HttpResponse Routes::connection_error(int status, std::string_view message, std::string_view path) {
  HttpResponse response = error_response(protocol_of(path), context_.codec.options().compat,
                                         {.code = code_of(status), .what = std::string(message)});
  response.status = status;
  return response;
}

}  // namespace galley::gateway
