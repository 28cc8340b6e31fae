// Goal: each path answers what the table says, in the error form its clients read.
// Method: requests without sockets, through exchanges in memory.
#include "gateway/routes.h"

#include <gtest/gtest.h>

#include "gateway/fakes_for_test.h"
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
       {"/v1/completions", "/beta/completions", "/v1/responses", "/responses", "/v1/embeddings",
        "/v1/files", "/v1/batches", "/v1/tokenize", "/detokenize"}) {
    const HttpResponse response = ask("POST", path);
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_EQ(header(response, "x-should-retry"), "false") << path;
    EXPECT_TRUE(openai_error(response)) << response.body;
    EXPECT_NE(response.body.find("POST \\\"" + path), std::string::npos) << response.body;
  }
  for (const std::string path : {"/v1/messages", "/anthropic/v1/messages", "/anthropic/messages",
                                 "/v1/messages/count_tokens"}) {
    const HttpResponse response = ask("POST", path);
    EXPECT_EQ(response.status, 501) << path;
    EXPECT_TRUE(anthropic_error(response)) << response.body;
  }
  EXPECT_EQ(ask("GET", "/v1/files/file-1").status, 501);
  EXPECT_EQ(ask("GET", "/user/balance").status, 501);
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

TEST_F(RoutesTest, CountsAndLogsRequests) {
  const HttpRequest request{.id = "req_9", .method = "GET", .path = "/v1/models/secret"};
  routes_.finished({.request = request,
                    .status = 404,
                    .complete = true,
                    .took = std::chrono::milliseconds(200)});
  routes_.connection_count_changed(3);
  EXPECT_NE(ask("GET", "/metrics")
                .body.find(R"(galley_http_requests_total{route="/models/",status="404"} 1)"),
            std::string::npos)
      << ask("GET", "/metrics").body;
  const std::string metrics = ask("GET", "/metrics").body;
  EXPECT_NE(metrics.find("galley_open_connections 3\n"), std::string::npos);
  const std::string bucket = R"(galley_http_request_seconds_bucket{route="/models/",le=)";
  EXPECT_NE(metrics.find(bucket + "\"0.1\"} 0\n"), std::string::npos);
  EXPECT_NE(metrics.find(bucket + "\"0.5\"} 1\n"), std::string::npos);
  ASSERT_EQ(gateway_.log_lines.size(), 1U);
  EXPECT_NE(gateway_.log_lines[0].find("request=req_9"), std::string::npos);
}

}  // namespace
}  // namespace galley::gateway
