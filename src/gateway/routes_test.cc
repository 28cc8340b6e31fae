// Goal: each path answers what the table says, in the error form its clients read.
// Method: requests without sockets, through exchanges in memory.
#include "gateway/routes.h"

#include <gtest/gtest.h>
#include <set>

#include "base/file.h"
#include "gateway/fakes_for_test.h"
#include "gateway/http_text.h"
#include "recipe/json.h"

namespace galley::gateway {
namespace {

class RoutesTest : public testing::Test {
 protected:
  // What the connection would do with a complete request.
  HttpResponse ask(std::string method,
                   std::string path,
                   std::vector<HttpHeader> headers = {},
                   std::string body = "") {
    HttpRequest request{.id = "req_1",
                        .method = std::move(method),
                        .path = std::move(path),
                        .headers = std::move(headers),
                        .body = {.text = std::move(body)}};
    if (auto early = routes_.refuse_early(request)) {
      return *early;
    }
    let_go();
    exchange_ = std::make_shared<FakeExchange>(std::move(request));
    exchange_->full = full_;
    routes_.handle(exchange_);
    exchange_->run();
    return exchange_->response;
  }
  // A reply and its exchange hold each other until the connection lets go.
  void let_go() {
    if (exchange_ != nullptr) {
      exchange_->listener.reset();
    }
  }
  void TearDown() override { let_go(); }
  static std::string header(const HttpResponse& response, std::string_view name) {
    for (const HttpHeader& header : response.headers) {
      if (header.name == name) {
        return header.value;
      }
    }
    return "";
  }
  static bool openai_error(const HttpResponse& response) {
    const auto json = recipe::parse_json(response.body);
    return json && json->find("error") != nullptr && json->find("type") == nullptr;
  }
  static bool anthropic_error(const HttpResponse& response) {
    const auto json = recipe::parse_json(response.body);
    return json && json->find("type") != nullptr && *json->find("type")->string() == "error";
  }

  TestGateway gateway_;
  Routes routes_{gateway_.context(), gateway_.metrics, gateway_.log};
  std::shared_ptr<FakeExchange> exchange_;
  bool full_ = false;
};

TEST_F(RoutesTest, ChatIsServedUnderItsThreePaths) {
  for (const std::string path :
       {"/chat/completions", "/v1/chat/completions", "/beta/chat/completions"}) {
    ask("POST", path, {}, chat_body());
    gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
    exchange_->run();
    EXPECT_EQ(exchange_->response.status, 200) << path;
    EXPECT_NE(exchange_->response.body.find("chat.completion"), std::string::npos);
  }
}

TEST_F(RoutesTest, AFormatThatTheSourceDoesNotEnforceIs501) {
  const std::string body = chat_body(R"(, "guided_json": {"type": "object"})");
  const HttpResponse refused = ask("POST", "/chat/completions", {}, body);
  EXPECT_EQ(refused.status, 501);
  EXPECT_NE(refused.body.find("guided_json"), std::string::npos) << refused.body;
  gateway_.source.enforces = true;
  ask("POST", "/chat/completions", {}, body);
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  exchange_->run();
  EXPECT_EQ(exchange_->response.status, 200);
}

TEST_F(RoutesTest, EachProtocolIsServedUnderItsPaths) {
  constexpr std::string_view kResponses = R"({"model":"DeepSeek-V4.1-Flash","input":"Hello"})";
  constexpr std::string_view kMessages = R"({"model":"DeepSeek-V4.1-Flash","max_tokens":9,)"
                                         R"("messages":[{"role":"user","content":"Hello"}]})";
  constexpr std::string_view kCompletions = R"({"model":"DeepSeek-V4.1-Flash","prompt":"Hello"})";
  struct Row {
    std::string path;
    std::string_view body;
    std::string_view object;
  };
  for (const Row& row : {Row{"/v1/responses", kResponses, R"("object":"response")"},
                         Row{"/responses", kResponses, R"("object":"response")"},
                         Row{"/v1/messages", kMessages, R"("type":"message")"},
                         Row{"/anthropic/v1/messages", kMessages, R"("type":"message")"},
                         Row{"/anthropic/messages", kMessages, R"("type":"message")"},
                         Row{"/completions", kCompletions, R"("object":"text_completion")"},
                         Row{"/v1/completions", kCompletions, R"("object":"text_completion")"},
                         Row{"/beta/completions", kCompletions, R"("object":"text_completion")"}}) {
    ask("POST", row.path, {}, std::string(row.body));
    gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
    exchange_->run();
    EXPECT_EQ(exchange_->response.status, 200) << row.path;
    EXPECT_NE(exchange_->response.body.find(row.object), std::string::npos)
        << exchange_->response.body;
  }
  EXPECT_TRUE(anthropic_error(ask("POST", "/v1/messages", {}, "{")));
  EXPECT_TRUE(openai_error(ask("POST", "/v1/responses", {}, "{")));
}

TEST_F(RoutesTest, CountsTokensOfMessages) {
  const std::string body =
      R"({"model":"DeepSeek-V4.1-Flash","messages":[{"role":"user","content":"Hello"}]})";
  const HttpResponse counted = ask("POST", "/v1/messages/count_tokens", {}, body);
  EXPECT_EQ(counted.status, 200) << counted.body;
  const auto prompt = gateway_.codec->prompt(recipe::Protocol::kMessages, body);
  EXPECT_EQ(counted.body, R"({"input_tokens":)" + std::to_string(prompt->size()) + "}");
  const HttpResponse bad = ask("POST", "/v1/messages/count_tokens", {}, R"({"model":"gpt-9"})");
  EXPECT_EQ(bad.status, 400);
  EXPECT_TRUE(anthropic_error(bad)) << bad.body;
}

TEST_F(RoutesTest, TextToTokensAndBack) {
  const HttpResponse made = ask("POST", "/tokenize", {}, R"({"prompt":"Hello <think>"})");
  EXPECT_EQ(made.status, 200) << made.body;
  const auto json = recipe::parse_json(made.body);
  ASSERT_TRUE(json.has_value());
  const std::string tokens = recipe::to_json(*json->find("tokens"));
  EXPECT_EQ(*json->find("count")->int64(),
            static_cast<std::int64_t>(json->find("tokens")->array()->size()));
  EXPECT_EQ(*json->find("max_model_len")->int64(), 2000);
  EXPECT_EQ(ask("POST", "/v1/detokenize", {}, R"({"tokens":)" + tokens + "}").body,
            R"({"prompt":"Hello <think>"})");
  // Text is text, whatever it spells.
  EXPECT_EQ(tokens.find(std::to_string(tokens_of("<think>")[0])), std::string::npos);
  const auto shown = recipe::parse_json(
      ask("POST", "/tokenize", {}, chat_body(R"(,"return_token_strs":true)")).body);
  ASSERT_TRUE(shown.has_value());
  EXPECT_EQ(*shown->find("token_strs")->array()->front().string(), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(recipe::to_json(*shown->find("control")).substr(0, 5), "[0,1,");
  // A conversation is tokenised as the model would get it.
  const auto chat = recipe::parse_json(ask("POST", "/v1/tokenize", {}, chat_body()).body);
  EXPECT_EQ(chat->find("tokens")->array()->size(),
            gateway_.codec->prompt(recipe::Protocol::kChat, chat_body())->size());
}

TEST_F(RoutesTest, BadTokensAreNamed) {
  struct Row {
    std::string path;
    std::string body;
    std::string_view param;
  };
  for (const Row& row :
       {Row{"/tokenize", "{}", "prompt"}, Row{"/tokenize", "[]", "body"},
        Row{"/tokenize", R"({"prompt":5})", "prompt"},
        Row{"/tokenize", R"({"prompt":"a","model":"gpt-9"})", "model"},
        Row{"/tokenize", R"({"prompt":"a","model":7})", "model"},
        Row{"/tokenize", R"({"messages":[]})", "model"}, Row{"/detokenize", "{}", "tokens"},
        Row{"/detokenize", R"({"tokens":[1,4096]})", "tokens[1]"},
        Row{"/detokenize", R"({"tokens":[-1]})", "tokens[0]"},
        Row{"/detokenize", R"({"tokens":["a"]})", "tokens[0]"}}) {
    const HttpResponse response = ask("POST", row.path, {}, row.body);
    EXPECT_EQ(response.status, 400) << row.body;
    const auto json = recipe::parse_json(response.body);
    ASSERT_TRUE(json.has_value());
    EXPECT_EQ(*json->find("error")->find("param")->string(), row.param) << response.body;
  }
}

TEST_F(RoutesTest, ABodyEndsWithItsParsing) {
  auto lease = std::make_shared<int>();
  const std::weak_ptr<int> held = lease;
  HttpRequest request{.method = "POST",
                      .path = "/v1/chat/completions",
                      .body = {.text = chat_body(), .lease = std::move(lease)}};
  const auto exchange = std::make_shared<FakeExchange>(std::move(request));
  routes_.handle(exchange);
  // Moved out on the connection's thread: a worker never touches the request.
  EXPECT_TRUE(exchange->request().body.text.empty());
  EXPECT_EQ(exchange->request().body.lease, nullptr);
  EXPECT_FALSE(held.expired());
  exchange->run();
  EXPECT_FALSE(exchange->ended);  // the generation has begun
  EXPECT_TRUE(held.expired());
  exchange->listener.reset();
}

TEST_F(RoutesTest, BadBodiesAre400InTheProtocolsForm) {
  const HttpResponse response = ask("POST", "/v1/chat/completions", {}, "{");
  EXPECT_EQ(response.status, 400);
  EXPECT_TRUE(openai_error(response)) << response.body;
  EXPECT_EQ(header(response, "content-type"), "application/json");
}

TEST_F(RoutesTest, TooManyWaitingRequestsAre429) {
  full_ = true;
  const HttpResponse response = ask("POST", "/v1/chat/completions", {}, chat_body());
  EXPECT_EQ(response.status, 429);
  EXPECT_EQ(header(response, "retry-after"), "1");
  EXPECT_TRUE(openai_error(response));
}

TEST_F(RoutesTest, WorkForAClientThatLeftIsSkipped) {
  HttpRequest request{
      .method = "POST", .path = "/v1/chat/completions", .body = {.text = chat_body()}};
  const auto exchange = std::make_shared<FakeExchange>(std::move(request));
  routes_.handle(exchange);
  exchange->is_gone = true;
  exchange->run();
  EXPECT_FALSE(exchange->started);
  EXPECT_TRUE(gateway_.source.last.prompt.empty());
}

TEST_F(RoutesTest, ListsModelsInBothForms) {
  EXPECT_EQ(ask("GET", "/v1/models").body,
            R"({"object":"list","data":[{"id":"DeepSeek-V4-Pro","object":"model",)"
            R"("created":1700000000,"owned_by":"deepseek"},{"id":"DeepSeek-V4.1-Flash",)"
            R"("object":"model","created":1700000000,"owned_by":"deepseek"}]})");
  EXPECT_EQ(ask("GET", "/v1/models", {{"anthropic-version", "2023-06-01"}}).body,
            R"({"data":[{"type":"model","id":"DeepSeek-V4-Pro","display_name":"DeepSeek-V4-Pro",)"
            R"("created_at":"2023-11-14T22:13:20Z"},{"type":"model","id":"DeepSeek-V4.1-Flash",)"
            R"("display_name":"DeepSeek-V4.1-Flash","created_at":"2023-11-14T22:13:20Z"}],)"
            R"("has_more":false,"first_id":"DeepSeek-V4-Pro","last_id":"DeepSeek-V4.1-Flash"})");
  EXPECT_EQ(ask("GET", "/models").body, ask("GET", "/v1/models").body);
}

TEST_F(RoutesTest, FindsOneModel) {
  EXPECT_EQ(ask("GET", "/v1/models/DeepSeek-V4-Pro").body,
            R"({"id":"DeepSeek-V4-Pro","object":"model","created":1700000000,)"
            R"("owned_by":"deepseek"})");
  EXPECT_EQ(ask("GET", "/models/DeepSeek%2DV4-Pro").status, 200);
  const HttpResponse missing = ask("GET", "/v1/models/gpt-9");
  EXPECT_EQ(missing.status, 404);
  EXPECT_TRUE(openai_error(missing));
  EXPECT_NE(missing.body.find("gpt-9"), std::string::npos);
  EXPECT_EQ(ask("GET", "/v1/models/").status, 404);
}

TEST_F(RoutesTest, SaysHowItIs) {
  EXPECT_EQ(ask("GET", "/health").body, R"({"status":"ok"})");
  EXPECT_EQ(ask("GET", "/ready").status, 200);
  gateway_.source.is_ready = false;
  EXPECT_EQ(ask("GET", "/ready").status, 503);
  EXPECT_EQ(ask("GET", "/health").status, 200);
  gateway_.source.is_ready = true;
  routes_.set_draining();
  EXPECT_EQ(ask("GET", "/ready").body, R"({"status":"draining"})");
  EXPECT_EQ(ask("GET", "/v1/health").status, 404);
}

TEST_F(RoutesTest, ADrainRefusesNewGenerationsOnly) {
  routes_.set_draining();
  HttpRequest head{.method = "POST", .path = "/v1/chat/completions"};
  const auto refused = routes_.refuse_early(head);
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 503);
  EXPECT_EQ(header(*refused, "retry-after"), "1");
  EXPECT_TRUE(openai_error(*refused)) << refused->body;
  EXPECT_EQ(ask("GET", "/v1/models").status, 200);
  EXPECT_EQ(ask("GET", "/health").status, 200);
}

TEST_F(RoutesTest, KnownRoutesThatAreNotBuiltAre501ByName) {
  for (const std::string path :
       {"/v1/embeddings", "/embeddings", "/v1/files", "/v1/batches", "/v1/tools/search"}) {
    const HttpResponse response = ask("POST", path);
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_EQ(header(response, "x-should-retry"), "false") << path;
    EXPECT_TRUE(openai_error(response)) << response.body;
    EXPECT_NE(response.body.find("POST \\\"" + path), std::string::npos) << response.body;
  }
  EXPECT_EQ(ask("GET", "/v1/files/file-1").status, 501);
  EXPECT_EQ(ask("GET", "/user/balance").status, 501);
}

class KeysTest : public RoutesTest {
 protected:
  KeysTest() {
    ApiKeys keys = ApiKeys::parse(api_key_line("alice", Secret("one")) + " concurrency=1\n" +
                                  api_key_line("bob", Secret("two")))
                       .value();
    keyed_ = std::make_unique<Routes>(
        gateway_.context(), gateway_.metrics, gateway_.log,
        RouteOptions{.pages = {{"/", "text/html", "<p>"}}, .keys = std::move(keys)});
  }
  std::optional<HttpResponse> refuse(std::string path, std::vector<HttpHeader> headers = {}) {
    return keyed_->refuse_early(
        {.method = path.starts_with("/v1/c") ? "POST" : "GET", .path = path, .headers = headers});
  }
  std::shared_ptr<FakeExchange> begin(std::string_view key, std::string_view more = "") {
    const auto exchange = std::make_shared<FakeExchange>(
        HttpRequest{.method = "POST",
                    .path = "/v1/chat/completions",
                    .headers = {{"authorization", "Bearer " + std::string(key)}},
                    .body = {.text = chat_body(more)}});
    keyed_->handle(exchange);
    exchange->run();
    return exchange;
  }

  std::unique_ptr<Routes> keyed_;
};

TEST_F(KeysTest, OnlyKnownKeysPass) {
  const auto none = refuse("/v1/models");
  ASSERT_TRUE(none.has_value());
  EXPECT_EQ(none->status, 401);
  EXPECT_EQ(header(*none, "www-authenticate"), "Bearer");
  EXPECT_TRUE(openai_error(*none)) << none->body;
  for (const HttpHeader& bad :
       {HttpHeader{"authorization", "Bearer three"}, HttpHeader{"authorization", "one"},
        HttpHeader{"authorization", "Basic one"}, HttpHeader{"authorization", "Bearer "},
        HttpHeader{"authorization", "bearer"}, HttpHeader{"x-api-key", "Bearer one"},
        HttpHeader{"x-api-key", ""}}) {
    const auto refused = refuse("/v1/chat/completions", {bad});
    ASSERT_TRUE(refused.has_value()) << bad.value;
    EXPECT_EQ(refused->status, 401) << bad.value;
    EXPECT_EQ(refused->body.find("three"), std::string::npos);
  }
  for (const HttpHeader& good :
       {HttpHeader{"authorization", "Bearer one"}, HttpHeader{"authorization", "bearer two"},
        HttpHeader{"x-api-key", "two"}}) {
    EXPECT_FALSE(refuse("/v1/chat/completions", {good}).has_value()) << good.value;
    EXPECT_FALSE(refuse("/metrics", {good}).has_value());
  }
  // A proxy's own header hides nothing.
  EXPECT_FALSE(refuse("/metrics", {{"authorization", "Basic x"}, {"x-api-key", "one"}}));
  EXPECT_TRUE(refuse("/metrics").has_value());
  for (const std::string open : {"/health", "/ready", "/"}) {
    EXPECT_FALSE(refuse(open).has_value()) << open;
  }
}

// A share for each name that a client thinks of would be no share.
TEST_F(KeysTest, ATenantIsTheKeyWhoeverItsUserIs) {
  const auto plain = begin("two");
  EXPECT_EQ(gateway_.source.last.tenant, "bob");
  EXPECT_EQ(gateway_.source.last.user, "");
  const auto user = begin("two", R"(,"user_id":"u1")");
  EXPECT_EQ(gateway_.source.last.tenant, "bob");
  EXPECT_EQ(gateway_.source.last.user, "u1");
  plain->listener.reset();
  user->listener.reset();
}

TEST_F(KeysTest, LimitsOfAKeyHoldUntilItsAnswersEnd) {
  const auto first = begin("one");
  EXPECT_FALSE(first->ended);
  const auto second = begin("one");
  EXPECT_EQ(second->response.status, 429);
  const auto early = refuse("/v1/chat/completions", {{"x-api-key", "one"}});  // before a body
  ASSERT_TRUE(early.has_value());
  EXPECT_EQ(early->status, 429);
  EXPECT_EQ(header(second->response, "retry-after"), "1");
  EXPECT_NE(second->response.body.find("1 requests at once"), std::string::npos);
  gateway_.source.sink().on_finish(recipe::SourceFinish::kStop);
  first->run();
  EXPECT_EQ(first->response.status, 200);
  const auto third = begin("one");
  EXPECT_FALSE(third->ended);
  third->leave();
  const auto bad = begin("one", R"(,"temperature":9)");  // gives its place back, too
  EXPECT_EQ(bad->response.status, 400);
  const auto fourth = begin("one");
  EXPECT_FALSE(fourth->ended);
  first->listener.reset();
  fourth->listener.reset();
}

TEST_F(KeysTest, ChoicesOfOneRequestCountEach) {
  const auto wide = begin("one", R"(,"n":2)");
  EXPECT_EQ(wide->response.status, 400);
  EXPECT_NE(wide->response.body.find(R"("param":"n")"), std::string::npos) << wide->response.body;
  EXPECT_EQ(header(wide->response, "retry-after"), "");
  EXPECT_TRUE(gateway_.source.sinks.empty());
  const auto first = begin("one");  // the place came back
  EXPECT_FALSE(first->ended);
  first->listener.reset();
}

TEST_F(RoutesTest, PagesAreServedAsTheyAre) {
  EXPECT_EQ(ask("GET", "/").status, 404);
  Routes routes(gateway_.context(), gateway_.metrics, gateway_.log,
                {.pages = {{"/", "text/html; charset=utf-8", "<p>"}}});
  const auto exchange = std::make_shared<FakeExchange>(HttpRequest{.method = "GET", .path = "/"});
  EXPECT_FALSE(routes.refuse_early(exchange->request()).has_value());
  routes.handle(exchange);
  EXPECT_EQ(exchange->response.status, 200);
  EXPECT_EQ(exchange->response.body, "<p>");
  EXPECT_EQ(header(exchange->response, "content-type"), "text/html; charset=utf-8");
  EXPECT_NE(header(exchange->response, "content-security-policy").find("default-src 'none'"),
            std::string::npos);
  const auto refused = routes.refuse_early({.method = "POST", .path = "/"});
  ASSERT_TRUE(refused.has_value());
  EXPECT_EQ(refused->status, 405);
  EXPECT_EQ(header(*refused, "allow"), "GET, HEAD");
}

TEST_F(RoutesTest, UnknownRoutesAre404) {
  for (const std::string path : {"/", "/v1", "/v2/models", "/v1/chat", "/v1/v1/models",
                                 "/v1chat/completions", "/v1/chat/completions/x", "*", ""}) {
    const HttpResponse response = ask("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_TRUE(openai_error(response)) << response.body;
  }
  EXPECT_TRUE(anthropic_error(ask("GET", "/anthropic/v1/nothing")));
  EXPECT_TRUE(anthropic_error(ask("GET", "/v1/nothing", {{"anthropic-version", "2023-06-01"}})));
}

// What a client sent comes back short and as valid UTF-8.
TEST_F(RoutesTest, AnErrorRepeatsAPathSafely) {
  for (const std::string path : {"/\xff", "/v1/models/%ff", "/v1/models/\xff"}) {
    const HttpResponse response = ask("GET", path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_TRUE(recipe::parse_json(response.body)) << response.body;
  }
  EXPECT_LT(ask("GET", "/" + std::string(8'000, 'x')).body.size(), 500U);
}

TEST_F(RoutesTest, OtherMethodsAre405WithAllow) {
  const HttpResponse chat = ask("GET", "/v1/chat/completions");
  EXPECT_EQ(chat.status, 405);
  EXPECT_EQ(header(chat, "allow"), "POST");
  EXPECT_EQ(header(ask("DELETE", "/v1/models"), "allow"), "GET, HEAD");
  EXPECT_EQ(header(ask("PATCH", "/v1/files"), "allow"), "GET, HEAD, POST");
  EXPECT_EQ(ask("BREW", "/health").status, 405);
}

TEST_F(RoutesTest, APathThatIsNotTextIsRepeatedAsText) {
  for (const HttpResponse& response :
       {ask("DELETE", "/v1/models/\xFF"), ask("POST", "/v1/responses/\xFF/x"), ask("GET", "/\xFF"),
        ask("PUT", "/v1/files/" + std::string(8'000, 'x'))}) {
    EXPECT_GE(response.status, 404);
    EXPECT_EQ(response.body.find('\xFF'), std::string::npos);
    EXPECT_LT(response.body.size(), 600U);
  }
}

TEST_F(RoutesTest, ConnectionErrorsHaveTheFormOfTheirPath) {
  const HttpResponse response = routes_.connection_error(413, "too large", "/v1/messages");
  EXPECT_EQ(response.status, 413);
  EXPECT_TRUE(anthropic_error(response));
  EXPECT_EQ(routes_.connection_error(408, "slow", "").status, 408);
  EXPECT_TRUE(openai_error(routes_.connection_error(505, "old", "")));
}

TEST_F(RoutesTest, ATraceIsLoggedAndPassedOn) {
  const std::string parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  ask("POST", "/v1/chat/completions", {{"traceparent", parent}}, chat_body());
  EXPECT_EQ(gateway_.source.last.traceparent, parent);
  EXPECT_EQ(gateway_.source.last.request_id, "req_1");
  routes_.finished({.request = {.id = "r", .headers = {{"traceparent", parent}}}});
  EXPECT_NE(gateway_.log_lines.back().find("trace=4bf92f3577b34da6a3ce929d0e0e4736"),
            std::string::npos)
      << gateway_.log_lines.back();
  ask("POST", "/v1/chat/completions", {{"traceparent", "00-bad"}}, chat_body());
  EXPECT_EQ(gateway_.source.last.traceparent, "");
  routes_.finished({.request = {.id = "r", .headers = {{"traceparent", "00-bad"}}}});
  EXPECT_NE(gateway_.log_lines.back().find("trace=none"), std::string::npos);
}

TEST_F(RoutesTest, EachRequestLeavesASpanUnlessItsTraceIsNotRecorded) {
  std::vector<Span> spans;
  RouteOptions options;
  options.on_span = [&](Span span) { spans.push_back(std::move(span)); };
  Metrics metrics;
  Routes routes(gateway_.context(), metrics, gateway_.log, std::move(options));
  const HttpRequest plain{.id = "req_9", .method = "POST", .path = "/v1/chat/completions"};
  routes.finished({.request = plain,
                   .status = 200,
                   .complete = true,
                   .took = std::chrono::seconds(3),
                   .first_token = std::chrono::seconds(1)});
  ASSERT_EQ(spans.size(), 1U);
  EXPECT_EQ(spans[0].name, "POST /chat/completions");
  EXPECT_EQ(spans[0].ended, gateway_.clock.unix_time());
  EXPECT_EQ(spans[0].ended - spans[0].begun, std::chrono::seconds(3));
  EXPECT_EQ(*spans[0].first_token - spans[0].begun, std::chrono::seconds(1));
  EXPECT_FALSE(spans[0].failed);
  EXPECT_EQ(spans[0].attributes.at(2).second, SpanValue(std::int64_t{200}));
  EXPECT_EQ(spans[0].attributes.at(4).second, SpanValue(true));
  EXPECT_EQ(spans[0].trace_id, "");

  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0";
  routes.finished(
      {.request = {
           .id = "r", .method = "GET", .path = "/x", .headers = {{"traceparent", trace + "0"}}}});
  EXPECT_EQ(spans.size(), 1U);
  routes.finished(
      {.request = {
           .id = "r", .method = "GET", .path = "/x", .headers = {{"traceparent", trace + "1"}}}});
  ASSERT_EQ(spans.size(), 2U);
  EXPECT_EQ(spans[1].trace_id, "4bf92f3577b34da6a3ce929d0e0e4736");
  EXPECT_EQ(spans[1].parent_id, "00f067aa0ba902b7");
  EXPECT_EQ(spans[1].name, "GET none");
  EXPECT_TRUE(spans[1].failed);
  EXPECT_FALSE(spans[1].first_token);
}

// The description that `galley serve` hands out knows the routes, all and no others.
TEST_F(RoutesTest, EveryRouteIsDescribed) {
  const auto text = read_file(GALLEY_TESTS_DIR "/../apps/api/openapi.json", Bytes(1U << 20U));
  ASSERT_TRUE(text) << to_string(text.error());
  const auto json = recipe::parse_json(*text);
  ASSERT_TRUE(json) << to_string(json.error());
  EXPECT_EQ(*json->find("openapi")->string(), "3.1.0");
  std::set<std::string> described;
  for (const recipe::JsonMember& path : *json->find("paths")->object()) {
    for (const recipe::JsonMember& operation : *path.value.object()) {
      described.insert(operation.key + " " + path.key);
    }
  }
  std::set<std::string> known;
  for (const KnownRoute& route : known_routes()) {
    known.insert(to_lower(route.method) + " " + route.path);
  }
  EXPECT_EQ(described, known);
  EXPECT_GT(known.size(), 25U);
}

TEST_F(RoutesTest, CountsAndLogsRequests) {
  const HttpRequest request{.id = "req_9", .method = "GET", .path = "/v1/models/secret"};
  routes_.finished({.request = request,
                    .status = 404,
                    .complete = true,
                    .took = std::chrono::milliseconds(200)});
  routes_.connection_count_changed(3);
  EXPECT_NE(ask("GET", "/metrics")
                .body.find(R"(galley_http_requests_total{route="/models/{model}",status="404"} 1)"),
            std::string::npos)
      << ask("GET", "/metrics").body;
  const std::string metrics = ask("GET", "/metrics").body;
  EXPECT_NE(metrics.find("galley_open_connections 3\n"), std::string::npos);
  const std::string bucket = R"(galley_http_request_seconds_bucket{route="/models/{model}",le=)";
  EXPECT_NE(metrics.find(bucket + "\"0.1\"} 0\n"), std::string::npos);
  EXPECT_NE(metrics.find(bucket + "\"0.5\"} 1\n"), std::string::npos);
  ASSERT_EQ(gateway_.log_lines.size(), 1U);
  EXPECT_NE(gateway_.log_lines[0].find("request=req_9"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
